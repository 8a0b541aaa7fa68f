/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of fast_kernels.h that need no integer dot product, written once over the vectors
 * of fast_simd_*.h. Included by fast_portable.c, fast_avx2.c and fast_avx512.c after one of those.
 */
#include "kernels/cpu/fast_kernels.h"

#include <math.h>
#include <string.h>

/* e^x to about 2 units in the last place: e^x = 2^n · e^r with |r| ≤ ln 2 / 2, and the Taylor
 * series of e^r to the seventh power. Below −87 it is 0; a NaN stays one. */
MR_SIMD mr_vec mr_vec_exp(mr_vec x)
{
    const mr_vec low = mr_vec_set(-87.0f);
    mr_vec clamped = mr_vec_min(mr_vec_set(88.0f), mr_vec_max(low, x));
    mr_vec n = mr_vec_round(mr_vec_mul(clamped, mr_vec_set(0x1.715476p+0f)));
    mr_vec r = mr_vec_fma(n, mr_vec_set(-0x1.62e4p-1f), clamped);
    r = mr_vec_fma(n, mr_vec_set(-0x1.7f7d1cp-20f), r);
    mr_vec y = mr_vec_set(1.0f / 5040.0f);
    y = mr_vec_fma(y, r, mr_vec_set(1.0f / 720.0f));
    y = mr_vec_fma(y, r, mr_vec_set(1.0f / 120.0f));
    y = mr_vec_fma(y, r, mr_vec_set(1.0f / 24.0f));
    y = mr_vec_fma(y, r, mr_vec_set(1.0f / 6.0f));
    y = mr_vec_fma(y, r, mr_vec_set(0.5f));
    y = mr_vec_fma(y, r, mr_vec_set(1.0f));
    y = mr_vec_fma(y, r, mr_vec_set(1.0f));
    return mr_vec_zero_below(mr_vec_mul(y, mr_vec_pow2(n)), x, low);
}

/* tanh x = 1 − 2 / (e^2x + 1) */
MR_SIMD mr_vec mr_vec_tanh(mr_vec x)
{
    const mr_vec one = mr_vec_set(1.0f);
    mr_vec e = mr_vec_exp(mr_vec_add(x, x));
    return mr_vec_sub(one, mr_vec_div(mr_vec_set(2.0f), mr_vec_add(e, one)));
}

/* x · Φ(x) with the error function of each lane from the C library. */
MR_SIMD mr_vec mr_vec_gelu(mr_vec x)
{
    float lanes[MR_FAST_LANES];
    mr_vec_store(lanes, x);
    for (uint32_t i = 0; i < MR_FAST_LANES; i++) {
        lanes[i] = 0.5f * lanes[i] * (1.0f + erff(lanes[i] * 0x1.6a09e6p-1f));
    }
    return mr_vec_load(lanes);
}

MR_SIMD mr_vec mr_vec_activate(mr_activation activation, mr_vec x)
{
    const mr_vec one = mr_vec_set(1.0f);
    mr_vec inner;
    switch (activation) {
    case MR_ACT_SILU:
        return mr_vec_div(x, mr_vec_add(one, mr_vec_exp(mr_vec_sub(mr_vec_set(0.0f), x))));
    case MR_ACT_GELU_TANH:
        /* √(2/π) · (x + 0.044715 x³) */
        inner = mr_vec_fma(mr_vec_mul(x, x), mr_vec_set(0.044715f), one);
        inner = mr_vec_mul(mr_vec_mul(inner, x), mr_vec_set(0x1.988454p-1f));
        return mr_vec_mul(mr_vec_mul(x, mr_vec_set(0.5f)), mr_vec_add(one, mr_vec_tanh(inner)));
    case MR_ACT_GELU:
        return mr_vec_gelu(x);
    case MR_ACT_RELU:
        break;
    }
    return mr_vec_max(mr_vec_set(0.0f), x);
}

static void mr_impl_gated(mr_activation activation, const float *gate, const float *up, float *out,
                          uint32_t count)
{
    for (uint32_t i = 0; i < count; i += MR_FAST_LANES) {
        uint32_t n = count - i < MR_FAST_LANES ? count - i : MR_FAST_LANES;
        mr_vec v = mr_vec_activate(activation, mr_vec_load_part(gate + i, n));
        if (up != NULL) {
            v = mr_vec_mul(v, mr_vec_load_part(up + i, n));
        }
        mr_vec_store_part(out + i, v, n);
    }
}

/* One block; planes is a constant where this is expanded. */
MR_SIMD void mr_quantize_block(const float *x, uint32_t planes, mr_fast_block *out)
{
    const float largest = planes == 1 ? 127.0f : 32639.0f;
    mr_vec lo = mr_vec_load(x);
    mr_vec hi = mr_vec_load(x + MR_FAST_LANES);
    mr_vec top = mr_vec_magnitude(mr_vec_magnitude(mr_vec_set(0.0f), lo), hi);
    float magnitude = mr_vec_reduce_magnitude(top);
    /* So small a block that largest / magnitude would overflow is nought. */
    bool nought = magnitude < 0x1p-110f;
    mr_vec factor = mr_vec_set(nought ? 0.0f : largest / magnitude);
    lo = mr_vec_mul(lo, factor);
    hi = mr_vec_mul(hi, factor);
    int32_t sum;
    int32_t low;
    if (planes == 1) {
        sum = mr_vec_store_codes(out->codes, lo, hi, &low);
    } else {
        /* code = 256 · upper + lower with lower in −128 … 127: x − 256 · upper is exact */
        lo = mr_vec_round(lo);
        hi = mr_vec_round(hi);
        mr_vec part = mr_vec_set(0x1p-8f);
        mr_vec half = mr_vec_set(0.5f);
        mr_vec upper_lo = mr_vec_floor(mr_vec_fma(lo, part, half));
        mr_vec upper_hi = mr_vec_floor(mr_vec_fma(hi, part, half));
        int32_t lower_low;
        sum = 256 * mr_vec_store_codes(out->codes, upper_lo, upper_hi, &low);
        lo = mr_vec_fma(upper_lo, mr_vec_set(-256.0f), lo);
        hi = mr_vec_fma(upper_hi, mr_vec_set(-256.0f), hi);
        sum += mr_vec_store_codes(out->codes + MR_FAST_BLOCK, lo, hi, &lower_low);
        low = 256 * low + lower_low;
    }
    out->scale = nought ? 0.0f : magnitude / largest;
    out->offset_sum = out->scale * (float)sum;
    out->minus_sum = -sum;
    out->minus_low = -low;
}

static void mr_impl_quantize(const float *x, uint32_t count, uint32_t planes, uint8_t *out)
{
    for (uint32_t i = 0; i < count; i += MR_FAST_BLOCK, out += mr_fast_block_bytes(planes)) {
        mr_fast_block *block = (mr_fast_block *)(void *)out;
        if (planes == 1) {
            mr_quantize_block(x + i, 1, block);
        } else {
            mr_quantize_block(x + i, 2, block);
        }
    }
}

static void mr_impl_blend(float *total, float a, const float *part, float b, uint32_t count)
{
    mr_vec va = mr_vec_set(a);
    mr_vec vb = mr_vec_set(b);
    for (uint32_t i = 0; i < count; i += MR_FAST_LANES) {
        mr_vec v = mr_vec_mul(mr_vec_load(total + i), va);
        mr_vec_store(total + i, mr_vec_fma(mr_vec_load(part + i), vb, v));
    }
}

static void mr_impl_scale(float *x, float a, uint32_t count)
{
    mr_vec va = mr_vec_set(a);
    for (uint32_t i = 0; i < count; i += MR_FAST_LANES) {
        uint32_t n = count - i < MR_FAST_LANES ? count - i : MR_FAST_LANES;
        mr_vec_store_part(x + i, mr_vec_mul(mr_vec_load_part(x + i, n), va), n);
    }
}

static void mr_impl_add(float *x, const float *y, uint32_t count)
{
    for (uint32_t i = 0; i < count; i += MR_FAST_LANES) {
        uint32_t n = count - i < MR_FAST_LANES ? count - i : MR_FAST_LANES;
        mr_vec v = mr_vec_add(mr_vec_load_part(x + i, n), mr_vec_load_part(y + i, n));
        mr_vec_store_part(x + i, v, n);
    }
}

static float mr_impl_mean(const float *x, uint32_t count)
{
    mr_vec sum = mr_vec_set(0.0f);
    for (uint32_t i = 0; i < count; i += MR_FAST_LANES) {
        uint32_t n = count - i < MR_FAST_LANES ? count - i : MR_FAST_LANES;
        sum = mr_vec_add(sum, mr_vec_load_part(x + i, n));
    }
    return mr_vec_reduce_add(sum) / (float)count;
}

static float mr_impl_mean_square(const float *x, float centre, uint32_t count)
{
    mr_vec vc = mr_vec_set(centre);
    mr_vec sum = mr_vec_set(0.0f);
    uint32_t whole = count / MR_FAST_LANES * MR_FAST_LANES;
    for (uint32_t i = 0; i < whole; i += MR_FAST_LANES) {
        mr_vec v = mr_vec_sub(mr_vec_load(x + i), vc);
        sum = mr_vec_fma(v, v, sum);
    }
    if (whole < count) {
        mr_vec v = mr_vec_sub(mr_vec_load_part(x + whole, count - whole), vc);
        v = mr_vec_window(v, 0, count - whole, mr_vec_set(0.0f));
        sum = mr_vec_fma(v, v, sum);
    }
    return mr_vec_reduce_add(sum) / (float)count;
}

static void mr_impl_normalize(const float *x, float centre, float factor, const float *gain,
                              const float *bias, float *out, uint32_t count)
{
    mr_vec vc = mr_vec_set(centre);
    mr_vec vf = mr_vec_set(factor);
    for (uint32_t i = 0; i < count; i += MR_FAST_LANES) {
        uint32_t n = count - i < MR_FAST_LANES ? count - i : MR_FAST_LANES;
        mr_vec v = mr_vec_mul(mr_vec_sub(mr_vec_load_part(x + i, n), vc), vf);
        v = mr_vec_mul(v, mr_vec_load_part(gain + i, n));
        if (bias != NULL) {
            v = mr_vec_add(v, mr_vec_load_part(bias + i, n));
        }
        mr_vec_store_part(out + i, v, n);
    }
}

static void mr_impl_rotate(mr_rope_pairing pairing, float *x, const float *cos, const float *sin,
                           uint32_t dims)
{
    uint32_t half = dims / 2;
    uint32_t step = pairing == MR_ROPE_INTERLEAVED ? MR_FAST_LANES / 2 : MR_FAST_LANES;
    uint32_t i = 0;
    for (; i + step <= half; i += step) {
        if (pairing == MR_ROPE_INTERLEAVED) {
            mr_vec v = mr_vec_load(x + 2 * i);
            mr_vec_store(x + 2 * i, mr_vec_rotate_pairs(v, cos + i, sin + i));
            continue;
        }
        mr_vec a = mr_vec_load(x + i);
        mr_vec b = mr_vec_load(x + half + i);
        mr_vec c = mr_vec_load(cos + i);
        mr_vec s = mr_vec_load(sin + i);
        mr_vec_store(x + i, mr_vec_sub(mr_vec_mul(a, c), mr_vec_mul(b, s)));
        mr_vec_store(x + half + i, mr_vec_fma(b, c, mr_vec_mul(a, s)));
    }
    uint32_t apart = pairing == MR_ROPE_INTERLEAVED ? 1 : half;
    for (; i < half; i++) {
        float *pair = x + (pairing == MR_ROPE_INTERLEAVED ? 2 * i : i);
        float a = pair[0];
        float b = pair[apart];
        pair[0] = a * cos[i] - b * sin[i];
        pair[apart] = a * sin[i] + b * cos[i];
    }
}

MR_SIMD mr_vec mr_vec_load_half(mr_dtype dtype, const uint16_t *from)
{
    return dtype == MR_DTYPE_F16 ? mr_vec_load_f16(from) : mr_vec_load_bf16(from);
}

/* One row of a widen job; dtype is F16 or BF16, a constant where this is expanded. */
MR_SIMD void mr_widen_row(mr_dtype dtype, const uint16_t *from, float *to, uint32_t count)
{
    uint32_t i = 0;
    for (; i + MR_FAST_LANES <= count; i += MR_FAST_LANES) {
        mr_vec_store(to + i, mr_vec_load_half(dtype, from + i));
    }
    if (i < count) {
        uint16_t rest[MR_FAST_LANES] = {0};
        memcpy(rest, from + i, (count - i) * sizeof(*rest));
        mr_vec_store_part(to + i, mr_vec_load_half(dtype, rest), count - i);
    }
}

/* cols is a constant where the common widths are expanded. */
MR_SIMD void mr_widen_rows(mr_dtype dtype, uint32_t cols, const mr_fast_widen *job)
{
    const uint16_t *from = job->from;
    float *to = job->to;
    for (uint32_t r = 0; r < job->rows; r++) {
        mr_widen_row(dtype, from, to, cols);
        from += job->from_stride;
        to += job->to_stride;
    }
}

MR_SIMD void mr_widen_halves(mr_dtype dtype, const mr_fast_widen *job)
{
    if (job->cols == 16) {
        mr_widen_rows(dtype, 16, job);
    } else if (job->cols == 64) {
        mr_widen_rows(dtype, 64, job);
    } else {
        mr_widen_rows(dtype, job->cols, job);
    }
}

/* Codes times their scales, one of each column or of each row. */
MR_SIMD void mr_widen_int8(uint32_t cols, bool scales_of_rows, const mr_fast_widen *job)
{
    for (uint32_t c = 0; c < cols; c += MR_FAST_LANES) {
        uint32_t n = cols - c < MR_FAST_LANES ? cols - c : MR_FAST_LANES;
        const int8_t *from = (const int8_t *)job->from + c;
        float *to = job->to + c;
        mr_vec scale = mr_vec_set(0.0f);
        if (!scales_of_rows) {
            scale = mr_vec_load_part(job->scales + c, n);
        }
        for (uint32_t r = 0; r < job->rows; r++) {
            mr_vec v;
            if (scales_of_rows) {
                scale = mr_vec_set(job->scales[r]);
            }
            if (n == MR_FAST_LANES) {
                v = mr_vec_load_int8(from);
                mr_vec_store(to, mr_vec_mul(v, scale));
            } else {
                int8_t rest[MR_FAST_LANES] = {0};
                memcpy(rest, from, n);
                v = mr_vec_load_int8(rest);
                mr_vec_store_part(to, mr_vec_mul(v, scale), n);
            }
            from += job->from_stride;
            to += job->to_stride;
        }
    }
}

static void mr_impl_widen(const mr_fast_widen *job)
{
    if (job->dtype == MR_DTYPE_I8) {
        if (job->scales_of_rows) {
            mr_widen_int8(job->cols, true, job);
        } else if (job->cols == MR_FAST_LANES) {
            mr_widen_int8(MR_FAST_LANES, false, job);
        } else {
            mr_widen_int8(job->cols, false, job);
        }
        return;
    }
    if (job->dtype == MR_DTYPE_F16) {
        mr_widen_halves(MR_DTYPE_F16, job);
        return;
    }
    if (job->dtype == MR_DTYPE_BF16) {
        mr_widen_halves(MR_DTYPE_BF16, job);
        return;
    }
    for (uint32_t r = 0; r < job->rows; r++) {
        const float *from = (const float *)job->from + r * job->from_stride;
        memcpy(job->to + r * job->to_stride, from, job->cols * sizeof(float));
    }
}

MR_SIMD void mr_vec_store_half(mr_dtype dtype, uint16_t *to, mr_vec v)
{
    if (dtype == MR_DTYPE_F16) {
        mr_vec_store_f16(to, v);
    } else {
        mr_vec_store_bf16(to, v);
    }
}

static void mr_impl_narrow(mr_dtype dtype, const float *from, void *to, uint32_t count)
{
    if (dtype == MR_DTYPE_F32) {
        memcpy(to, from, count * sizeof(float));
        return;
    }
    uint16_t *half = to;
    uint32_t i = 0;
    for (; i + MR_FAST_LANES <= count; i += MR_FAST_LANES) {
        mr_vec_store_half(dtype, half + i, mr_vec_load(from + i));
    }
    if (i < count) {
        uint16_t rest[MR_FAST_LANES];
        mr_vec_store_half(dtype, rest, mr_vec_load_part(from + i, count - i));
        memcpy(half + i, rest, (count - i) * sizeof(*rest));
    }
}

static float mr_impl_quantize_kv(const float *from, int8_t *codes, uint32_t count)
{
    mr_vec top = mr_vec_set(0.0f);
    for (uint32_t i = 0; i < count; i += MR_FAST_LANES) {
        uint32_t n = count - i < MR_FAST_LANES ? count - i : MR_FAST_LANES;
        top = mr_vec_magnitude(top, mr_vec_load_part(from + i, n));
    }
    float largest = mr_vec_reduce_magnitude(top);
    bool nought = largest < 0x1p-110f;
    mr_vec factor = mr_vec_set(nought ? 0.0f : 127.0f / largest);
    for (uint32_t i = 0; i < count; i += 2 * MR_FAST_LANES) {
        float part[2 * MR_FAST_LANES] = {0};
        int8_t rest[2 * MR_FAST_LANES];
        uint32_t n = count - i < 2 * MR_FAST_LANES ? count - i : 2 * MR_FAST_LANES;
        memcpy(part, from + i, n * sizeof(float));
        mr_vec lo = mr_vec_mul(mr_vec_load(part), factor);
        mr_vec hi = mr_vec_mul(mr_vec_load(part + MR_FAST_LANES), factor);
        int32_t low;
        (void)mr_vec_store_codes(rest, lo, hi, &low);
        memcpy(codes + i, rest, n);
    }
    return nought ? 0.0f : largest / 127.0f;
}

static void mr_impl_softmax(mr_fast_softmax *row)
{
    const mr_vec hidden = mr_vec_set(-INFINITY);
    const mr_vec scale = mr_vec_set(row->scale);
    mr_vec top = hidden;
    for (uint32_t i = row->first; i < row->covered; i += MR_FAST_LANES) {
        mr_vec s = mr_vec_mul(mr_vec_load(row->scores + i), scale);
        if (row->soft_cap > 0) {
            mr_vec cap = mr_vec_set(row->soft_cap);
            s = mr_vec_mul(cap, mr_vec_tanh(mr_vec_div(s, cap)));
        }
        if (i < row->begin || i + MR_FAST_LANES > row->end) {
            uint32_t begin = row->begin > i ? row->begin - i : 0;
            uint32_t end = row->end > i ? row->end - i : 0;
            begin = begin < MR_FAST_LANES ? begin : MR_FAST_LANES;
            end = end < MR_FAST_LANES ? end : MR_FAST_LANES;
            s = mr_vec_window(s, begin, end, hidden);
        }
        mr_vec_store(row->scores + i, s);
        top = mr_vec_max(s, top);
    }
    row->max = mr_vec_reduce_max(top);
    mr_vec max = mr_vec_set(row->max);
    mr_vec sum = mr_vec_set(0.0f);
    for (uint32_t i = row->first; i < row->covered; i += MR_FAST_LANES) {
        mr_vec p = mr_vec_exp(mr_vec_sub(mr_vec_load(row->scores + i), max));
        mr_vec_store(row->scores + i, p);
        sum = mr_vec_add(sum, p);
    }
    row->sum = mr_vec_reduce_add(sum);
}
