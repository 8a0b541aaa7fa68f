/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A grid of CUDA threads on one thread of the CPU. A block's threads are fibers that change at
 * meetings only, in an order of their own in every block; blocks run one after the other.
 *
 * Emulated, for a kernel that is correct only by luck to fail here:
 *   meetings   of a warp: all 32 lanes are in the same call; of a block. Who waits for ever is told
 *   copies     cp.async: what they go to is poison from when they are asked for. They land where
 * the thread that asked has waited for them and then met the others in __syncwarp or
 *              __syncthreads, for shuffles order no memory
 *   memory     shared memory is poison (0xff: NaN) before a block, and so it must be behind what
 * was asked for, afterwards; copies and loads of matrices are aligned and within it
 *
 * Not emulated: blocks side by side (so __threadfence does nothing, and atomics are plain), the
 * order of ordinary accesses to memory between meetings, launches that overlap, time.
 */
#ifndef MILLRACE_TESTS_EMULATED_FIBERS_H
#define MILLRACE_TESTS_EMULATED_FIBERS_H

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

struct dim3 {
    uint32_t x, y, z;
    constexpr dim3(uint32_t of_x = 1, uint32_t of_y = 1, uint32_t of_z = 1)
        : x(of_x), y(of_y), z(of_z)
    {
    }
};

/* Of the fiber that runs. */
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

/* By this name kernels know it; an address in it is an offset from its beginning. */
extern uint8_t shared[];

namespace emulated
{

constexpr uint32_t LANES = 32;

/* What a lane brings to a meeting, and takes away. */
using words = uint32_t[6];
/* Makes of what all lanes brought what they take away; NULL: every lane sees what all brought. */
using combine = void (*)(words *lanes);

enum class call { sync, shuffle, ballot, largest, product, load, turn };

/* The lanes' words, until the lane's next meeting but one. */
const words *meet(call kind, const void *mine, size_t bytes, combine f);
/* __syncwarp. */
void meet_warp();
/* __syncthreads. */
void meet_block();
/* __syncthreads_or. */
bool any_of_block(bool vote);

/* cp.async of `bytes` from global memory, zeroes unless `there`; commit_group; wait_group. */
void copy(uint32_t to, const void *from, uint32_t bytes, bool there);
void commit_copies();
void wait_copies(size_t groups_left);

/* Where an aligned address in shared memory is. */
const uint8_t *shared_at(uint32_t address, uint32_t bytes);

/* Ends the launch; `text` is what error_text says. */
[[noreturn]] void fail(const char *text);

/* body() as every thread of a grid. */
struct grid_of {
    dim3 grid;
    uint32_t threads;
    size_t shared_bytes;
    std::function<void()> body;
};

/* Runs it to the end, or keeps it while `keep` is not NULL: 0, or a code of a CUDA error. */
int launch(const grid_of &of);
extern std::vector<grid_of> *keep;
/* Of the last launch that failed. */
const char *error_text();

} // namespace emulated

#endif
