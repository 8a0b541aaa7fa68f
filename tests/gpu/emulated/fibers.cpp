/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fibers begin by makecontext and then change by _setjmp and _longjmp: those ask the kernel for
 * nothing (swapcontext: the signal mask, a microsecond), and every CPU has them. What a CUDA kernel
 * has on its stack needs no destructors.
 */
#include "fibers.h"

#include <csetjmp>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <ucontext.h>
#include <vector>

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace
{

constexpr uint32_t MOST_THREADS = 1024;
constexpr size_t MOST_SHARED = 163 * 1024; /* of sm_80 */
constexpr size_t GUARD = 4096;             /* bytes behind what was asked for */
constexpr size_t STACK = 65536;            /* of a fiber */
constexpr int FAILED = 719;                /* cudaErrorLaunchFailure */

struct copy_of {
    uint32_t to;
    uint32_t bytes;
    const void *from; /* NULL: zeroes */
};

struct fiber {
    jmp_buf state;
    ucontext_t beginning;
    bool begun;
    bool done; /* with this block */
    std::vector<uint8_t> stack;
    std::vector<copy_of> copies; /* that have not landed, in order */
    std::vector<size_t> groups;  /* where each ends */
    size_t waited;               /* copies that were waited for */
};

struct warp {
    emulated::call kind;
    uint32_t arrived;
    uint32_t turn;
    emulated::words lanes[2][emulated::LANES]; /* turns alternate: some still read the last one's */
};

std::vector<fiber> fibers(MOST_THREADS);
warp warps[MOST_THREADS / emulated::LANES];
jmp_buf launcher;
const std::function<void()> *thread_body;
const char *failure = "no error";
size_t shared_size;
uint32_t current;
uint32_t stride;  /* who is next */
uint32_t running; /* threads that have not ended */
uint32_t waiting; /* of them, at __syncthreads */
uint32_t block_turn;
bool block_votes[2]; /* turns alternate, as a warp's do */
uint32_t idle;       /* changes of fibers since a meeting came about or a thread ended */

/* Until somebody comes back to `from`. Apart, so that no caller keeps anything in registers that
 * a jump would not restore. */
[[gnu::noinline]] void change(jmp_buf from, uint32_t to)
{
    fiber &next = fibers[to];
    current = to;
    threadIdx.x = to;
    if (_setjmp(from) == 0) {
        if (!next.begun) {
            next.begun = true;
            setcontext(&next.beginning);
        }
        _longjmp(next.state, 1);
    }
}

/* The block has ended: until the next one begins. */
[[gnu::noinline]] void leave(fiber &of)
{
    if (_setjmp(of.state) == 0) {
        _longjmp(launcher, 1);
    }
}

/* The next lane of the warp, or after the last one, if not `within` it, of the next warp. */
uint32_t after(uint32_t thread, bool within)
{
    const uint32_t lane = (thread + stride) % emulated::LANES;
    uint32_t warp = thread / emulated::LANES;
    if (lane == 0 && !within) {
        warp = (warp + stride) % (blockDim.x / emulated::LANES);
    }
    return warp * emulated::LANES + lane;
}

/* Lets the others go on, or those of the warp only: no other can help who waits for these, so a
 * warp goes as far ahead of others as it may. */
void yield(bool within_warp)
{
    if (++idle > 4 * blockDim.x) {
        emulated::fail("threads wait for others that never come");
    }
    uint32_t next = current;
    do {
        next = after(next, within_warp);
    } while (fibers[next].done && next != current);
    if (next != current) {
        change(fibers[current].state, next);
    }
}

void end_meeting_of_block()
{
    waiting = 0;
    block_turn++;
    block_votes[block_turn % 2] = false;
    idle = 0;
}

/* A thread has ended. */
void end_thread(fiber &of)
{
    if (!of.copies.empty()) {
        emulated::fail("a thread has ended before copies that it asked for");
    }
    of.done = true;
    idle = 0;
    running--;
    if (running == 0) {
        leave(of);
        return;
    }
    if (waiting == running) {
        end_meeting_of_block();
    }
    yield(false);
}

/* A fiber is the thread of its number in one block after the other. */
void run_fiber()
{
    for (;;) {
        (*thread_body)();
        end_thread(fibers[current]);
    }
}

void land_copies()
{
    fiber &f = fibers[current];
    for (size_t i = 0; i < f.waited; i++) {
        const copy_of &c = f.copies[i];
        if (c.from != nullptr) {
            memcpy(shared + c.to, c.from, c.bytes);
        } else {
            memset(shared + c.to, 0, c.bytes);
        }
    }
    f.copies.erase(f.copies.begin(), f.copies.begin() + static_cast<ptrdiff_t>(f.waited));
    for (size_t &end : f.groups) {
        end -= f.waited;
    }
    f.waited = 0;
}

void begin_fiber(fiber &f)
{
    f.stack.resize(STACK);
    f.begun = false;
    getcontext(&f.beginning);
    f.beginning.uc_stack.ss_sp = f.stack.data();
    f.beginning.uc_stack.ss_size = f.stack.size();
    f.beginning.uc_link = nullptr;
    makecontext(&f.beginning, run_fiber, 0);
}

/* One block; `text` stays NULL unless it failed. */
[[gnu::noinline]] void run_block(uint32_t threads)
{
    memset(shared, 0xff, shared_size + GUARD);
    for (warp &w : warps) {
        w.arrived = 0;
    }
    for (uint32_t i = 0; i < threads; i++) {
        fiber &f = fibers[i];
        if (f.stack.empty()) {
            begin_fiber(f);
        }
        f.done = false;
        f.copies.clear();
        f.groups.clear();
        f.waited = 0;
    }
    running = threads;
    waiting = 0;
    idle = 0;
    block_votes[0] = block_votes[1] = false;
    /* A step that has no part in common with a number comes to all of so many. */
    do {
        stride = (stride * 5 + 2) % threads | 1;
    } while (std::gcd(stride, threads) != 1);
    change(launcher, stride % threads);
    for (size_t i = 0; i < GUARD; i++) {
        if (shared[shared_size + i] != 0xff) {
            failure = "shared memory was written behind what was asked for";
        }
    }
}

} // namespace

alignas(1024) uint8_t shared[MOST_SHARED + GUARD];

void emulated::fail(const char *text)
{
    failure = text;
    for (fiber &f : fibers) { /* where they are they stay */
        f.stack.clear();
    }
    _longjmp(launcher, 1);
}

const emulated::words *emulated::meet(call kind, const void *mine, size_t bytes, combine f)
{
    warp &w = warps[current / LANES];
    if (w.arrived > 0 && w.kind != kind) {
        fail("lanes of a warp meet in different calls");
    }
    const uint32_t turn = w.turn;
    words *lanes = w.lanes[turn % 2];
    w.kind = kind;
    memcpy(lanes[current % LANES], mine, bytes);
    if (++w.arrived == LANES) {
        if (f != nullptr) {
            f(lanes);
        }
        w.arrived = 0;
        w.turn++;
        idle = 0;
    }
    while (w.turn == turn) {
        yield(true);
    }
    return lanes;
}

void emulated::meet_warp()
{
    const uint32_t nothing = 0;
    land_copies();
    meet(call::sync, &nothing, sizeof(nothing), nullptr);
}

void emulated::meet_block()
{
    land_copies();
    const uint32_t turn = block_turn;
    if (++waiting == running) {
        end_meeting_of_block();
    }
    while (block_turn == turn) {
        yield(false);
    }
}

bool emulated::any_of_block(bool vote)
{
    const uint32_t turn = block_turn;
    block_votes[turn % 2] = block_votes[turn % 2] || vote;
    meet_block();
    return block_votes[turn % 2];
}

const uint8_t *emulated::shared_at(uint32_t address, uint32_t bytes)
{
    if (address % bytes != 0) {
        fail("an address in shared memory is not aligned");
    }
    if (address + bytes > shared_size) {
        fail("an address is behind the shared memory that was asked for");
    }
    return shared + address;
}

void emulated::copy(uint32_t to, const void *from, uint32_t bytes, bool there)
{
    if (reinterpret_cast<uintptr_t>(from) % bytes != 0) {
        fail("a copy comes from where it is not aligned");
    }
    (void)shared_at(to, bytes);
    memset(shared + to, 0xff, bytes);
    fibers[current].copies.push_back({to, bytes, there ? from : nullptr});
}

void emulated::commit_copies()
{
    fiber &f = fibers[current];
    f.groups.push_back(f.copies.size());
}

void emulated::wait_copies(size_t groups_left)
{
    fiber &f = fibers[current];
    if (f.groups.size() > groups_left) {
        const size_t over = f.groups.size() - groups_left;
        f.waited = f.groups[over - 1];
        f.groups.erase(f.groups.begin(), f.groups.begin() + static_cast<ptrdiff_t>(over));
    }
}

std::vector<emulated::grid_of> *emulated::keep;

int emulated::launch(const grid_of &of)
{
    static bool backward; /* every second launch takes its blocks so */
    const dim3 grid = of.grid;
    const uint32_t threads = of.threads;
    const uint32_t blocks = grid.x * grid.y * grid.z;
    if (blocks == 0 || threads == 0 || threads > MOST_THREADS || threads % LANES != 0 ||
        of.shared_bytes > MOST_SHARED) {
        failure = "a launch of a shape that is not emulated";
        return FAILED;
    }
    if (keep != nullptr) {
        keep->push_back(of);
        return 0;
    }
    const char *before = failure;
    failure = nullptr;
    gridDim = grid;
    blockDim = dim3(threads);
    shared_size = of.shared_bytes;
    thread_body = &of.body;
    backward = !backward;
    for (uint32_t i = 0; i < blocks && failure == nullptr; i++) {
        const uint32_t block = backward ? blocks - 1 - i : i;
        blockIdx = dim3(block % grid.x, block / grid.x % grid.y, block / grid.x / grid.y);
        run_block(threads);
    }
    if (failure != nullptr) {
        return FAILED;
    }
    failure = before;
    return 0;
}

const char *emulated::error_text()
{
    return failure;
}
