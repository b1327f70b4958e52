/* CUDA's device vocabulary for a host compiler: what kernels/cuda/gpu.h includes where nvcc is not at work.
 *
 * Included after the CUDA headers, whose host side declares none of this. Functions that wait for other threads take
 * the place of their call along, for messages and to see that all lanes are at the same one.
 */
#ifndef SIM_DEVICE_H
#define SIM_DEVICE_H

#include "device_hooks.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#define threadIdx (::sim::current_thread)
#define blockIdx (::sim::current_block)
#define blockDim (::sim::current_block_shape)
#define gridDim (::sim::current_grid_shape)

constexpr int warpSize = 32;

#define __launch_bounds__(...)

/* SHARED(float, part, [8]); SHARED_DYNAMIC(float, rows); */
#define SHARED(type, name, dimensions)  \
    static type name dimensions;        \
    static uint64_t name##_last_block_; \
    ::sim::shared_static(&name, sizeof name, &name##_last_block_)
#define SHARED_DYNAMIC(type, name) type *const name = static_cast<type *>(::sim::shared_dynamic())

#define SIM_PLACE const char *file = __builtin_FILE(), int line = __builtin_LINE()

/* Abort where `pointer` is not aligned as an access of `alignment` bytes demands. */
inline void sim_check_alignment(const void *pointer, size_t alignment, SIM_PLACE)
{
    if (reinterpret_cast<uintptr_t>(pointer) % alignment) ::sim::misaligned(pointer, alignment, file, line);
}

/* --- barriers ------------------------------------------------------------------------------------------------- */

inline void __syncthreads(SIM_PLACE)
{
    ::sim::barrier(false, file, line);
}

inline int __syncthreads_count(int predicate, SIM_PLACE)
{
    return int(::sim::barrier(predicate != 0, file, line));
}

inline int __syncthreads_or(int predicate, SIM_PLACE)
{
    return ::sim::barrier(predicate != 0, file, line) != 0;
}

inline int __syncthreads_and(int predicate, SIM_PLACE)
{
    return ::sim::barrier(predicate == 0, file, line) == 0;
}

inline void __syncwarp(unsigned mask = 0xffffffff, SIM_PLACE)
{
    ::sim::collective("__syncwarp", mask, nullptr, nullptr, file, line);
}

inline void __threadfence()
{
}
inline void __threadfence_block()
{
}

/* --- shuffles and votes ---------------------------------------------------------------------------------------- */

namespace sim
{

template <typename T> struct shuffled {
    T value, result;
    unsigned source; /* lane */
};

/* A lane that is not there gives poison. */
template <typename T> void shuffle(lane_records records)
{
    for (void *record : records) {
        auto *to = static_cast<shuffled<T> *>(record);
        if (!to) continue;
        auto *from = static_cast<const shuffled<T> *>(records[to->source]);
        if (from)
            to->result = from->value;
        else
            memset(static_cast<void *>(&to->result), 0xFF, sizeof to->result);
    }
}

template <typename T>
T shuffle_from(const char *operation, unsigned mask, T value, unsigned source, const char *file, int line)
{
    shuffled<T> record = {value, value, source};
    collective(operation, mask, &record, shuffle<T>, file, line);
    return record.result;
}

struct vote {
    bool predicate;
    unsigned ballot;
};

inline void count_votes(lane_records records)
{
    unsigned ballot = 0;
    for (unsigned i = 0; i < 32; i++)
        if (records[i] && static_cast<vote *>(records[i])->predicate) ballot |= 1u << i;
    for (void *record : records)
        if (record) static_cast<vote *>(record)->ballot = ballot;
}

template <typename T> struct reduced {
    T value;
};

template <typename T, typename Combine> void reduce(lane_records records)
{
    bool first = true;
    T total{};
    for (void *record : records) {
        if (!record) continue;
        T value = static_cast<reduced<T> *>(record)->value;
        total = first ? value : Combine()(total, value);
        first = false;
    }
    for (void *record : records)
        if (record) static_cast<reduced<T> *>(record)->value = total;
}

template <typename Combine, typename T>
T reduce_over(const char *operation, unsigned mask, T value, const char *file, int line)
{
    reduced<T> record = {value};
    collective(operation, mask, &record, reduce<T, Combine>, file, line);
    return record.value;
}

struct take_sum {
    template <typename T> T operator()(T a, T b) const
    {
        return T(a + b);
    }
};
struct take_min {
    template <typename T> T operator()(T a, T b) const
    {
        return a < b ? a : b;
    }
};
struct take_max {
    template <typename T> T operator()(T a, T b) const
    {
        return a < b ? b : a;
    }
};
struct take_and {
    unsigned operator()(unsigned a, unsigned b) const
    {
        return a & b;
    }
};
struct take_or {
    unsigned operator()(unsigned a, unsigned b) const
    {
        return a | b;
    }
};

} // namespace sim

template <typename T> T __shfl_sync(unsigned mask, T value, int source, int width = 32, SIM_PLACE)
{
    unsigned segment = ::sim::lane() & ~unsigned(width - 1);
    return ::sim::shuffle_from("__shfl_sync", mask, value, segment | (unsigned(source) & unsigned(width - 1)), file,
                               line);
}

template <typename T> T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, SIM_PLACE)
{
    unsigned lane = ::sim::lane(), inside = lane & unsigned(width - 1);
    return ::sim::shuffle_from("__shfl_up_sync", mask, value, inside >= delta ? lane - delta : lane, file, line);
}

template <typename T> T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, SIM_PLACE)
{
    unsigned lane = ::sim::lane(), inside = lane & unsigned(width - 1);
    return ::sim::shuffle_from("__shfl_down_sync", mask, value, inside + delta < unsigned(width) ? lane + delta : lane,
                               file, line);
}

template <typename T> T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, SIM_PLACE)
{
    unsigned lane = ::sim::lane(), source = lane ^ unsigned(bits);
    bool later_segment = source / unsigned(width) > lane / unsigned(width);
    return ::sim::shuffle_from("__shfl_xor_sync", mask, value, later_segment ? lane : source & 31, file, line);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, SIM_PLACE)
{
    ::sim::vote vote = {predicate != 0, 0};
    ::sim::collective("__ballot_sync", mask, &vote, ::sim::count_votes, file, line);
    return vote.ballot;
}

inline int __any_sync(unsigned mask, int predicate, SIM_PLACE)
{
    ::sim::vote vote = {predicate != 0, 0};
    ::sim::collective("__any_sync", mask, &vote, ::sim::count_votes, file, line);
    return vote.ballot != 0;
}

inline int __all_sync(unsigned mask, int predicate, SIM_PLACE)
{
    ::sim::vote vote = {predicate == 0, 0};
    ::sim::collective("__all_sync", mask, &vote, ::sim::count_votes, file, line);
    return vote.ballot == 0;
}

inline unsigned __reduce_add_sync(unsigned mask, unsigned value, SIM_PLACE)
{
    return ::sim::reduce_over<::sim::take_sum>("__reduce_add_sync", mask, value, file, line);
}
inline int __reduce_add_sync(unsigned mask, int value, SIM_PLACE)
{
    return int(::sim::reduce_over<::sim::take_sum>("__reduce_add_sync", mask, unsigned(value), file, line));
}
template <typename T> T __reduce_min_sync(unsigned mask, T value, SIM_PLACE)
{
    static_assert(std::is_same_v<T, int> || std::is_same_v<T, unsigned>, "as the hardware has it");
    return ::sim::reduce_over<::sim::take_min>("__reduce_min_sync", mask, value, file, line);
}
template <typename T> T __reduce_max_sync(unsigned mask, T value, SIM_PLACE)
{
    static_assert(std::is_same_v<T, int> || std::is_same_v<T, unsigned>, "as the hardware has it");
    return ::sim::reduce_over<::sim::take_max>("__reduce_max_sync", mask, value, file, line);
}
inline unsigned __reduce_and_sync(unsigned mask, unsigned value, SIM_PLACE)
{
    return ::sim::reduce_over<::sim::take_and>("__reduce_and_sync", mask, value, file, line);
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned value, SIM_PLACE)
{
    return ::sim::reduce_over<::sim::take_or>("__reduce_or_sync", mask, value, file, line);
}

/* --- memory ----------------------------------------------------------------------------------------------------- */

#define SIM_LOAD(name)                                        \
    template <typename T> T name(const T *pointer, SIM_PLACE) \
    {                                                         \
        sim_check_alignment(pointer, sizeof(T), file, line);  \
        return *pointer;                                      \
    }
SIM_LOAD(__ldg)
SIM_LOAD(__ldcg)
SIM_LOAD(__ldca)
SIM_LOAD(__ldcs)
SIM_LOAD(__ldlu)
#undef SIM_LOAD

#define SIM_STORE(name)                                                                 \
    template <typename T> void name(T *pointer, std::common_type_t<T> value, SIM_PLACE) \
    {                                                                                   \
        sim_check_alignment(pointer, sizeof(T), file, line);                            \
        *pointer = value;                                                               \
    }
SIM_STORE(__stwb)
SIM_STORE(__stcg)
SIM_STORE(__stcs)
#undef SIM_STORE

/* Threads switch only where they wait: an ordinary access is atomic. Each returns what was there. */
#define SIM_ATOMIC(name, expression)                                      \
    template <typename T> T name(T *pointer, std::common_type_t<T> value) \
    {                                                                     \
        T old = *pointer;                                                 \
        *pointer = T(expression);                                         \
        return old;                                                       \
    }
SIM_ATOMIC(atomicAdd, old + value)
SIM_ATOMIC(atomicSub, old - value)
SIM_ATOMIC(atomicExch, value)
SIM_ATOMIC(atomicMin, old < value ? old : value)
SIM_ATOMIC(atomicMax, old < value ? value : old)
SIM_ATOMIC(atomicAnd, old &value)
SIM_ATOMIC(atomicOr, old | value)
SIM_ATOMIC(atomicXor, old ^ value)
#undef SIM_ATOMIC

template <typename T> T atomicCAS(T *pointer, std::common_type_t<T> expected, std::common_type_t<T> value)
{
    T old = *pointer;
    if (old == expected) *pointer = value;
    return old;
}

/* --- arithmetic -------------------------------------------------------------------------------------------------- */

/* glibc declares functions of these names: macros. Their reduced accuracy on a GPU is not simulated. */
#define __expf(x) expf(x)
#define __exp10f(x) exp10f(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __log10f(x) log10f(x)
#define __powf(x, y) powf(x, y)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __tanf(x) tanf(x)

inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
inline double rsqrt(double x)
{
    return 1.0 / sqrt(x);
}
inline float __frsqrt_rn(float x)
{
    return 1.0f / sqrtf(x);
}
inline float __frcp_rn(float x)
{
    return 1.0f / x;
}
inline float __fsqrt_rn(float x)
{
    return sqrtf(x);
}
inline float __fdividef(float x, float y)
{
    return x / y;
}
inline float __fdiv_rn(float x, float y)
{
    return x / y;
}
inline float __fadd_rn(float x, float y)
{
    return x + y;
}
inline float __fsub_rn(float x, float y)
{
    return x - y;
}
inline float __fmul_rn(float x, float y)
{
    return x * y;
}
inline float __fmaf_rn(float x, float y, float z)
{
    return fmaf(x, y, z);
}
inline double __dadd_rn(double x, double y)
{
    return x + y;
}
inline double __dmul_rn(double x, double y)
{
    return x * y;
}
inline double __fma_rn(double x, double y, double z)
{
    return fma(x, y, z);
}
inline float __saturatef(float x)
{
    return x > 0 ? (x < 1 ? x : 1) : 0;
}

template <typename To, typename From> To sim_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
inline unsigned __float_as_uint(float x)
{
    return sim_bits<unsigned>(x);
}
inline int __float_as_int(float x)
{
    return sim_bits<int>(x);
}
inline float __uint_as_float(unsigned x)
{
    return sim_bits<float>(x);
}
inline float __int_as_float(int x)
{
    return sim_bits<float>(x);
}
inline long long __double_as_longlong(double x)
{
    return sim_bits<long long>(x);
}
inline double __longlong_as_double(long long x)
{
    return sim_bits<double>(x);
}

inline unsigned __umulhi(unsigned x, unsigned y)
{
    return unsigned(uint64_t(x) * y >> 32);
}
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y)
{
    return (unsigned long long)((unsigned __int128)x * y >> 64);
}
inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
inline int __clz(int x)
{
    return x ? __builtin_clz(unsigned(x)) : 32;
}
inline int __ffs(int x)
{
    return __builtin_ffs(x);
}

#define SIM_MIN_MAX(type)           \
    inline type min(type a, type b) \
    {                               \
        return b < a ? b : a;       \
    }                               \
    inline type max(type a, type b) \
    {                               \
        return a < b ? b : a;       \
    }
SIM_MIN_MAX(int)
SIM_MIN_MAX(unsigned)
SIM_MIN_MAX(long)
SIM_MIN_MAX(unsigned long)
SIM_MIN_MAX(long long)
SIM_MIN_MAX(unsigned long long)
#undef SIM_MIN_MAX
inline float min(float a, float b)
{
    return fminf(a, b);
}
inline float max(float a, float b)
{
    return fmaxf(a, b);
}
inline double min(double a, double b)
{
    return fmin(a, b);
}
inline double max(double a, double b)
{
    return fmax(a, b);
}

/* --- launching --------------------------------------------------------------------------------------------------- */

namespace sim
{

template <typename... P, size_t... I>
void call_kernel(const void *kernel, void *const *arguments, std::index_sequence<I...>)
{
    (void)arguments; // a kernel without parameters
    reinterpret_cast<void (*)(P...)>(const_cast<void *>(kernel))(*static_cast<P *>(arguments[I])...);
}

template <typename... P> void call_kernel(const void *kernel, void *const *arguments)
{
    call_kernel<P...>(kernel, arguments, std::index_sequence_for<P...>());
}

} // namespace sim

/* Tell the simulation the parameters of a kernel, which cudaLaunchKernel cannot know. */
template <typename... P> void launch_note(void (*kernel)(P...))
{
    static const size_t bytes[sizeof...(P) + 1] = {sizeof(P)..., 0};
    ::sim::register_kernel(reinterpret_cast<const void *>(kernel), ::sim::call_kernel<P...>, bytes, sizeof...(P));
}

#endif
