/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/sample.c on the device: the same steps in the same order on the same uniforms. See there
 * for what they mean; differences in the last place come only from expf, logf and the order of
 * sums.
 *
 * The filters are cuts (cut.cuh).
 *
 *   grid    workers; each takes rows in turn and has scratch of its own
 *   block   1024 threads over one row
 */
#include "kernels/cuda/device/philox.cuh"
#include "kernels/cuda/sample/cut.cuh"

#define THREADS     MR_SAMPLE_THREADS
#define NOISE_BOUND 17.0f /* more than any Gumbel noise, as on the host */
#define SEEN        0x80000000u

/* ---- bias and penalties ---- */

/* Entries for one token are added in the order of the list, by whoever has the first of them. */
__device__ static inline void mr_add_bias(float *scaled, uint32_t n, const mr_row_params &p,
                                          const uint32_t *tokens, const float *values)
{
    for (uint32_t i = threadIdx.x; i < p.bias_count; i += THREADS) {
        const uint32_t token = tokens[p.bias_offset + i];
        bool first = token < n;
        for (uint32_t j = 0; first && j < i; j++) {
            first = tokens[p.bias_offset + j] != token;
        }
        for (uint32_t j = i; first && j < p.bias_count; j++) {
            if (tokens[p.bias_offset + j] == token) {
                scaled[token] += values[p.bias_offset + j];
            }
        }
    }
}

__device__ static inline void mr_penalise(float *scaled, uint32_t *counts, uint32_t n,
                                          const mr_row_params &p, const uint32_t *history)
{
    for (uint32_t i = threadIdx.x; i < p.history_len; i += THREADS) {
        if (history[i] < n) {
            atomicOr(&counts[history[i]], SEEN);
            if (i >= p.prompt_len) {
                atomicAdd(&counts[history[i]], 1);
            }
        }
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < p.history_len; i += THREADS) {
        const uint32_t token = history[i];
        const uint32_t mark = token < n ? atomicExch(&counts[token], 0) : 0;
        if (mark == 0) {
            continue; /* another thread has the token */
        }
        const uint32_t count = mark & ~SEEN;
        float logit = scaled[token];
        const bool possible = isfinite(logit);
        logit = logit > 0.0f ? logit / p.repetition_penalty : logit * p.repetition_penalty;
        if (count > 0) {
            logit = __fsub_rn(logit, p.presence_penalty);
            logit = __fsub_rn(logit, __fmul_rn(p.frequency_penalty, static_cast<float>(count)));
        }
        scaled[token] = possible ? fminf(fmaxf(logit, -FLT_MAX), FLT_MAX) : logit;
    }
    __syncthreads();
}

/* ---- filters ---- */

__device__ static inline mr_cut mr_filter(mr_sample_view view, const mr_cuda_row &row,
                                          mr_sample_block *block)
{
    const mr_row_params &p = row.params;
    mr_cut last = mr_keep_all();
    if (p.top_k > 0 && p.top_k < view.n) {
        last = mr_reach<false>(view, last, static_cast<double>(p.top_k), block);
    }
    if (p.top_p < 1.0f) {
        last = mr_reach<true>(view, last, static_cast<double>(p.top_p), block);
    }
    if (p.min_p > 0.0f) {
        const mr_cut at = {row.min_p_cut, UINT32_MAX};
        last = mr_before(at, last) ? at : last;
    }
    return last;
}

/* ---- draw ---- */

__device__ static inline float mr_gumbel(uint32_t bits)
{
    const float uniform = (static_cast<float>(bits >> 9) + 0.5f) * 0x1p-23f;
    return -logf(-logf(uniform));
}

__device__ static inline uint32_t mr_draw(mr_sample_view view, const mr_row_params &p, mr_cut last,
                                          uint32_t max, mr_sample_block *block)
{
    uint32_t c[4] = {p.position, p.choice, 0, max / 4}; /* purpose 0: MR_DRAW_TOKEN */
    mr_philox(c, p.key);
    mr_cut best = {view.values[max] + mr_gumbel(c[max % 4]), max};
#pragma unroll 2
    for (uint32_t q = threadIdx.x; q < mr_fours(view); q += THREADS) {
        const float4 four = mr_four(view, q);
        const float values[4] = {four.x, four.y, four.z, four.w};
        bool wanted[4];
        bool any = false;
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            wanted[i] =
                values[i] + NOISE_BOUND >= best.value && mr_kept(values[i], 4 * q + i, last);
            any = any || wanted[i];
        }
        if (!any) {
            continue;
        }
        uint32_t word[4] = {p.position, p.choice, 0, q};
        mr_philox(word, p.key);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            if (wanted[i]) {
                const mr_cut at = {values[i] + mr_gumbel(word[i]), 4 * q + i};
                best = mr_before(at, best) ? at : best;
            }
        }
    }
    return mr_block_first(best, block).id;
}

/* ---- log-probabilities ---- */

struct mr_row_out {
    uint32_t token;
    float *logprob;
    uint8_t *n_top;
    mr_alternative *top;
};

__device__ static inline void mr_report(mr_sample_view view, mr_cut last, float max,
                                        const mr_row_params &p, const mr_row_out &out,
                                        mr_sample_block *block)
{
    double sum = 0.0;
    mr_for_kept(view, last, [&](float value) { sum += static_cast<double>(expf(value - max)); });
    const double log_sum = static_cast<double>(max) + log(mr_block_sum(sum, block->sums[0]));
    if (threadIdx.x == 0) {
        const float value = view.values[out.token];
        *out.logprob = mr_kept(value, out.token, last)
                           ? static_cast<float>(static_cast<double>(value) - log_sum)
                           : -CUDART_INF_F;
    }
    const uint32_t wanted = min(static_cast<uint32_t>(p.n_top), static_cast<uint32_t>(MR_MAX_TOP));
    mr_cut behind = {CUDART_INF_F, UINT32_MAX};
    uint32_t found = 0;
    for (; found < wanted; found++) {
        mr_cut mine = {-CUDART_INF_F, UINT32_MAX};
        for (uint32_t v = threadIdx.x; v < view.n; v += THREADS) {
            const mr_cut at = {view.values[v], v};
            if (mr_kept(at.value, v, last) && mr_before(behind, at) && mr_before(at, mine)) {
                mine = at;
            }
        }
        behind = mr_block_first(mine, block);
        if (behind.id == UINT32_MAX) {
            break;
        }
        if (threadIdx.x == 0) {
            out.top[found].token = behind.id;
            out.top[found].logprob =
                static_cast<float>(static_cast<double>(behind.value) - log_sum);
        }
    }
    if (threadIdx.x == 0) {
        *out.n_top = static_cast<uint8_t>(found);
    }
}

/* ---- a row ---- */

struct mr_sample_args {
    mr_cuda_sample p;
    const mr_cuda_step_header *header;
    const float *logits;
    const mr_cuda_row *rows;
    const uint32_t *bias_tokens;
    const float *bias_values;
    const uint32_t *history;
    float *scaled;
    uint32_t *counts;
    uint32_t *tokens;
    float *logprobs;
    uint8_t *n_top;
    uint8_t *corrupt;
    mr_alternative *top;
};

/* Bias, penalties, shift and temperature into the worker's scratch. False: corrupt. */
__device__ static inline bool mr_scale(const mr_sample_args &a, const mr_cuda_row &row,
                                       mr_sample_view raw, float *scaled, mr_cut *max,
                                       mr_sample_block *block)
{
    const mr_row_params &p = row.params;
    if (p.bias_count > 0 || row.penalties != 0) {
        for (uint32_t v = threadIdx.x; v < raw.n; v += THREADS) {
            scaled[v] = raw.values[v];
        }
        __syncthreads();
        mr_add_bias(scaled, raw.n, p, a.bias_tokens, a.bias_values);
        __syncthreads();
        if (row.penalties != 0) {
            mr_penalise(scaled, a.counts + static_cast<size_t>(blockIdx.x) * raw.n, raw.n, p,
                        a.history + static_cast<size_t>(row.slot) * a.p.max_context);
        }
        raw.values = scaled;
        if (!mr_find_max(raw, block, max)) {
            return false;
        }
    }
    const float divisor = p.temperature > 0.0f ? p.temperature : 1.0f;
#pragma unroll 4
    for (uint32_t q = threadIdx.x; q < mr_fours(raw); q += THREADS) {
        const float4 x = mr_four(raw, q);
        mr_put_four(scaled, raw.n, q,
                    make_float4((x.x - max->value) / divisor, (x.y - max->value) / divisor,
                                (x.z - max->value) / divisor, (x.w - max->value) / divisor));
    }
    __syncthreads();
    return true;
}

__device__ static inline void mr_sample_row_of(const mr_sample_args &a, uint32_t r,
                                               mr_sample_block *block)
{
    const mr_cuda_row &row = a.rows[r];
    const mr_row_params &p = row.params;
    const mr_sample_view raw = {a.logits + static_cast<size_t>(r) * a.p.vocab, a.p.vocab};
    float *scratch = a.scaled + static_cast<size_t>(blockIdx.x) * a.p.vocab;
    const mr_sample_view scaled = {scratch, a.p.vocab};
    const bool greedy = !(p.temperature > 0.0f);
    const bool reports = p.want_logprob || p.n_top > 0;
    const bool plain = greedy && p.bias_count == 0 && row.penalties == 0;
    mr_cut raw_max;
    bool good = mr_find_max(raw, block, &raw_max);
    mr_cut max = raw_max;
    if (good && !(plain && !(reports && p.processed))) {
        good = mr_scale(a, row, raw, scratch, &max, block);
    }
    if (threadIdx.x == 0) {
        a.corrupt[r] = good ? 0 : 1;
        a.n_top[r] = 0;
        a.logprobs[r] = 0.0f;
        a.tokens[r] = 0;
    }
    if (!good) {
        return;
    }
    const mr_cut last = greedy ? mr_keep_all() : mr_filter(scaled, row, block);
    uint32_t token = max.id;
    if (p.target != MR_NO_TARGET) {
        token = p.target < a.p.vocab ? p.target : 0;
    } else if (!greedy) {
        token = mr_draw(scaled, p, last, max.id, block);
    }
    if (threadIdx.x == 0) {
        a.tokens[r] = token;
    }
    if (!reports) {
        return;
    }
    const mr_row_out out = {token, a.logprobs + r, a.n_top + r,
                            a.top + static_cast<size_t>(r) * MR_MAX_TOP};
    if (p.processed) {
        mr_report(scaled, last, 0.0f, p, out, block);
    } else {
        mr_report(raw, mr_keep_all(), raw_max.value, p, out, block);
    }
}

__global__ static void __launch_bounds__(THREADS) mr_sample_kernel(mr_sample_args a)
{
    MR_DYNAMIC_SHARED(uint8_t, 128, shared);
    mr_sample_block *block = reinterpret_cast<mr_sample_block *>(shared);
    mr_let_next_come();
    mr_wait_for_previous();
    for (uint32_t r = blockIdx.x; r < a.header->n_rows; r += gridDim.x) {
        mr_sample_row_of(a, r, block);
        __syncthreads();
    }
}

int mr_cuda_sample_run(mr_cuda_context *context, const mr_cuda_sample *p)
{
    mr_sample_args a = {};
    a.p = *p;
    a.header = mr_at<const mr_cuda_step_header>(p->header);
    a.logits = mr_at<const float>(p->logits);
    a.rows = mr_at<const mr_cuda_row>(p->rows);
    a.bias_tokens = mr_at<const uint32_t>(p->bias_tokens);
    a.bias_values = mr_at<const float>(p->bias_values);
    a.history = mr_at<const uint32_t>(p->history);
    a.scaled = mr_at<float>(p->scaled);
    a.counts = mr_at<uint32_t>(p->counts);
    a.tokens = mr_at<uint32_t>(p->tokens);
    a.logprobs = mr_at<float>(p->logprobs);
    a.n_top = mr_at<uint8_t>(p->n_top);
    a.corrupt = mr_at<uint8_t>(p->corrupt);
    a.top = mr_at<mr_alternative>(p->top);
    const uint32_t blocks = p->max_rows < p->workers ? p->max_rows : p->workers;
    const int bytes = static_cast<int>(sizeof(mr_sample_block));
    const int code =
        cudaFuncSetAttribute(mr_sample_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    return code == 0 ? mr_launch(context, mr_sample_kernel, blocks, THREADS, bytes, a) : code;
}
