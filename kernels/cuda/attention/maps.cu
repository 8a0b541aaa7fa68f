/* SPDX-License-Identifier: Apache-2.0 */
/* Maps of the paged cache for the copy engine. They are made by the driver, which the module is not
 * linked with. */
#include "kernels/cuda/attention/maps.cuh"

typedef CUresult (*mr_encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                 const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                 const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                 CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

int mr_cuda_attention_open(mr_cuda_context *context)
{
    cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
    const int code = cudaGetDriverEntryPointByVersion(
        "cuTensorMapEncodeTiled", &context->encode_tensor, 12000, cudaEnableDefault, &result);
#else
    const int code = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &context->encode_tensor,
                                             cudaEnableDefault, &result);
#endif
    if (code == 0 && result != cudaDriverEntryPointSuccess) {
        context->encode_tensor = nullptr; /* an older driver: tiles.cu does the work */
    }
    return code;
}

bool mr_map_describe(const mr_cuda_context *context, CUtensorMap *map, mr_dtype type,
                     mr_cuda_ptr at, const mr_map_shape &shape)
{
    const mr_encode_fn encode = reinterpret_cast<mr_encode_fn>(context->encode_tensor);
    const cuuint32_t steps[4] = {1, 1, 1, 1};
    return encode(map,
                  type == MR_DTYPE_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                       : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                  shape.rank, mr_at<void>(at), shape.sizes, shape.strides, shape.box, steps,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

bool mr_map_plane(const mr_cuda_context *context, CUtensorMap *map, const mr_cuda_kv &kv,
                  mr_cuda_ptr plane, uint32_t keys)
{
    const cuuint64_t line = static_cast<cuuint64_t>(kv.width) * 2;
    const mr_map_shape shape = {
        4,
        {64, 8, kv.width / 64, MR_MAP_NOWHERE},
        {line, 128, 8 * line},
        {64, 8, kv.width / 64, keys / 8},
    };
    return mr_map_describe(context, map, kv.type, plane, shape);
}
