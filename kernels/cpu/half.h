/*
 * fp16 and bf16 as bits, to and from fp32. Narrowing rounds once, to nearest even: fp16 overflows to infinity (from
 * 65520 on; up to there the nearest number is 65504), subnormals are exact, a NaN stays a NaN (quiet, upper payload
 * bits kept). The portable functions give the bits that F16C gives.
 */
#ifndef GACC_KERNELS_CPU_HALF_H
#define GACC_KERNELS_CPU_HALF_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cpu/simd.h"

#ifdef __F16C__
#include <immintrin.h>
#endif

static inline uint32_t float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float bits_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float bf16_to_fp32(uint16_t h)
{
    return bits_float((uint32_t)h << 16);
}

/* Adding 0x7fff plus the lowest bit kept carries exactly where nearest-even rounds up. */
static inline uint16_t fp32_to_bf16(float x)
{
    const uint32_t bits = float_bits(x);
    const uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
    const uint32_t nan = bits | 0x400000;
    return (uint16_t)(((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded) >> 16);
}

static inline float fp16_to_fp32(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    const uint32_t magnitude = (uint32_t)(h & 0x7fff) << 13;
    const uint32_t normal = magnitude + (112u << 23);
    const uint32_t special = magnitude | 0x7f800000 | (magnitude > 0x0f800000 ? 0x400000 : 0);
    /* below 2^-14: 2^-14 + h·2^-24 has h in its mantissa, exactly */
    const uint32_t subnormal = float_bits(bits_float(magnitude + (113u << 23)) - 0x1p-14f);
    const uint32_t finite = magnitude < 0x00800000 ? subnormal : normal;
    return bits_float(sign | (magnitude < 0x0f800000 ? finite : special));
}

static inline uint16_t fp32_to_fp16(float x)
{
    const uint32_t bits = float_bits(x);
    const uint32_t sign = (bits >> 16) & 0x8000;
    const uint32_t magnitude = bits & 0x7fffffff;
    const uint32_t normal = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    const uint32_t nan = 0x7e00 | ((magnitude >> 13) & 0x3ff);
    /* below 2^-14: adding 0.5 rounds the value to the grid of 2^-24 and leaves its multiple in the mantissa */
    const uint32_t subnormal = float_bits(bits_float(magnitude) + 0.5f) - float_bits(0.5f);
    const uint32_t finite = magnitude < (113u << 23) ? subnormal : normal;
    const uint32_t special = magnitude > 0x7f800000 ? nan : 0x7c00;
    return (uint16_t)(sign | (magnitude < (143u << 23) ? finite : special));
}

static inline void widen_bf16(float *out, const uint16_t *in, size_t n)
{
    SIMD for (size_t i = 0; i < n; i++) out[i] = bf16_to_fp32(in[i]);
}

static inline void narrow_bf16(uint16_t *out, const float *in, size_t n)
{
    SIMD for (size_t i = 0; i < n; i++) out[i] = fp32_to_bf16(in[i]);
}

static inline void widen_fp16(float *out, const uint16_t *in, size_t n)
{
    size_t i = 0;
#ifdef __AVX512F__
    for (; i + 16 <= n; i += 16)
        _mm512_storeu_ps(out + i, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(in + i))));
#endif
#ifdef __F16C__
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(in + i))));
#endif
    SIMD for (size_t j = i; j < n; j++) out[j] = fp16_to_fp32(in[j]);
}

static inline void narrow_fp16(uint16_t *out, const float *in, size_t n)
{
    size_t i = 0;
#ifdef __AVX512F__
    for (; i + 16 <= n; i += 16)
        _mm256_storeu_si256((__m256i *)(void *)(out + i),
                            _mm512_cvtps_ph(_mm512_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#endif
#ifdef __F16C__
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(void *)(out + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#endif
    SIMD for (size_t j = i; j < n; j++) out[j] = fp32_to_fp16(in[j]);
}

#endif
