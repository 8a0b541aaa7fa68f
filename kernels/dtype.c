/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/dtype.h"

#include "base/checked.h"
#include "kernels/float_bits.h"

static const mr_dtype_info dtypes[MR_DTYPE_STORED_COUNT] = {
    [MR_DTYPE_F32] = {"F32", 1, 4},
    [MR_DTYPE_F16] = {"F16", 1, 2},
    [MR_DTYPE_BF16] = {"BF16", 1, 2},
    [MR_DTYPE_Q8_0] = {"Q8_0", 32, 34},
    [MR_DTYPE_Q4_0] = {"Q4_0", 32, 18},
    [MR_DTYPE_Q4_1] = {"Q4_1", 32, 20},
    [MR_DTYPE_Q5_0] = {"Q5_0", 32, 22},
    [MR_DTYPE_Q5_1] = {"Q5_1", 32, 24},
    [MR_DTYPE_Q2_K] = {"Q2_K", 256, 84},
    [MR_DTYPE_Q3_K] = {"Q3_K", 256, 110},
    [MR_DTYPE_Q4_K] = {"Q4_K", 256, 144},
    [MR_DTYPE_Q5_K] = {"Q5_K", 256, 176},
    [MR_DTYPE_Q6_K] = {"Q6_K", 256, 210},
    [MR_DTYPE_IQ4_NL] = {"IQ4_NL", 32, 18},
    [MR_DTYPE_IQ4_XS] = {"IQ4_XS", 256, 136},
    [MR_DTYPE_F8_E4M3] = {"F8_E4M3", 1, 1},
    [MR_DTYPE_I8] = {"I8", 1, 1},
    [MR_DTYPE_U8] = {"U8", 1, 1},
    [MR_DTYPE_BOOL] = {"BOOL", 1, 1},
    [MR_DTYPE_I16] = {"I16", 1, 2},
    [MR_DTYPE_I32] = {"I32", 1, 4},
    [MR_DTYPE_I64] = {"I64", 1, 8},
    [MR_DTYPE_F64] = {"F64", 1, 8},
    [MR_DTYPE_CODES4] = {"INT4", 32, 21},
    [MR_DTYPE_CODES8] = {"INT8", 32, 37},
    [MR_DTYPE_CODES_F8] = {"FP8", 32, 36},
};

const mr_dtype_info *mr_dtype_info_get(mr_dtype dtype)
{
    MR_CHECK((unsigned)dtype < MR_DTYPE_STORED_COUNT);
    return &dtypes[dtype];
}

bool mr_dtype_is_weight(mr_dtype dtype)
{
    return (unsigned)dtype < MR_DTYPE_COUNT || dtype == MR_DTYPE_CODES4 ||
           dtype == MR_DTYPE_CODES8 || dtype == MR_DTYPE_CODES_F8;
}

bool mr_dtype_row_bytes(mr_dtype dtype, uint64_t elements, uint64_t *out)
{
    const mr_dtype_info *info = mr_dtype_info_get(dtype);
    if (elements % info->block_elements != 0) {
        return false;
    }
    return mr_mul_u64(elements / info->block_elements, info->block_bytes, out);
}

float mr_f16_to_f32(uint16_t bits)
{
    return mr_f16_widen(bits);
}

uint16_t mr_f32_to_f16(float value)
{
    return mr_f16_narrow(value);
}

float mr_bf16_to_f32(uint16_t bits)
{
    return mr_bf16_widen(bits);
}

uint16_t mr_f32_to_bf16(float value)
{
    return mr_bf16_narrow(value);
}
