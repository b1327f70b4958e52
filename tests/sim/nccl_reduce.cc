#include "element.h"
#include "nccl_transfer.h"
#include "settings.h"

#include <algorithm>

namespace sim
{

namespace
{

template <typename T> constexpr bool is_half = std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>;

/* fp16 and bf16 are combined in fp32. */
template <typename T> auto as_number(T x)
{
    if constexpr (is_half<T>)
        return widened(x);
    else
        return x;
}

template <typename T, typename N> T rounded(N x)
{
    if constexpr (is_half<T>)
        return narrowed<T>(x);
    else
        return T(x);
}

template <typename T> T combine(T a, T b, ncclRedOp_t reduction)
{
    auto x = as_number(a), y = as_number(b);
    switch (reduction) {
    case ncclProd:
        return rounded<T>(x * y);
    case ncclMax:
        return rounded<T>(std::max(x, y));
    case ncclMin:
        return rounded<T>(std::min(x, y));
    default:
        return rounded<T>(x + y);
    }
}

template <typename T> void reduce_as(T *out, const char *const *in, int ranks, size_t n, ncclRedOp_t reduction)
{
    for (size_t i = 0; i < n; i++) {
        T total = reinterpret_cast<const T *>(in[0])[i];
        for (int r = 1; r < ranks; r++) total = combine(total, reinterpret_cast<const T *>(in[r])[i], reduction);
        if (reduction == ncclAvg) total = rounded<T>(as_number(total) / decltype(as_number(total))(ranks));
        out[i] = total;
    }
}

} // namespace

void reduce(void *out, const char *const *in, int ranks, size_t n, ncclDataType_t type, ncclRedOp_t reduction)
{
    switch (type) {
    case ncclInt8:
        return reduce_as(static_cast<int8_t *>(out), in, ranks, n, reduction);
    case ncclUint8:
        return reduce_as(static_cast<uint8_t *>(out), in, ranks, n, reduction);
    case ncclInt32:
        return reduce_as(static_cast<int32_t *>(out), in, ranks, n, reduction);
    case ncclUint32:
        return reduce_as(static_cast<uint32_t *>(out), in, ranks, n, reduction);
    case ncclInt64:
        return reduce_as(static_cast<int64_t *>(out), in, ranks, n, reduction);
    case ncclUint64:
        return reduce_as(static_cast<uint64_t *>(out), in, ranks, n, reduction);
    case ncclFloat16:
        return reduce_as(static_cast<__half *>(out), in, ranks, n, reduction);
    case ncclFloat32:
        return reduce_as(static_cast<float *>(out), in, ranks, n, reduction);
    case ncclFloat64:
        return reduce_as(static_cast<double *>(out), in, ranks, n, reduction);
    case ncclBfloat16:
        return reduce_as(static_cast<__nv_bfloat16 *>(out), in, ranks, n, reduction);
    default:
        fatal(__FILE__, __LINE__, "type %d is not simulated", int(type));
    }
}

} // namespace sim
