/*
 * Names of one instance: with GACC_INSTANCE = fp16_avx2, `cpu_add` in a source file is the function cpu_add_fp16_avx2.
 * The types are those of struct kernel_table.
 */
#ifndef GACC_KERNELS_CPU_INSTANCE_H
#define GACC_KERNELS_CPU_INSTANCE_H

#include "kernels/cpu/cpu.h"

#define INSTANCE_JOIN(name, instance) name##_##instance
#define INSTANCE_NAME(name, instance) INSTANCE_JOIN(name, instance)
#define INSTANCE(name) INSTANCE_NAME(name, GACC_INSTANCE)

#define cpu_linear_forward INSTANCE(cpu_linear_forward)
#define cpu_linear_backward_input INSTANCE(cpu_linear_backward_input)
#define cpu_linear_backward_weight INSTANCE(cpu_linear_backward_weight)
#define cpu_add INSTANCE(cpu_add)
#define cpu_activation_forward INSTANCE(cpu_activation_forward)
#define cpu_activation_backward INSTANCE(cpu_activation_backward)
#define cpu_dropout INSTANCE(cpu_dropout)
#define cpu_embedding_forward INSTANCE(cpu_embedding_forward)
#define cpu_embedding_backward INSTANCE(cpu_embedding_backward)
#define cpu_layernorm_forward INSTANCE(cpu_layernorm_forward)
#define cpu_layernorm_backward INSTANCE(cpu_layernorm_backward)
#define cpu_groupnorm_forward INSTANCE(cpu_groupnorm_forward)
#define cpu_groupnorm_backward INSTANCE(cpu_groupnorm_backward)
#define cpu_batchnorm_moments INSTANCE(cpu_batchnorm_moments)
#define cpu_batchnorm_settle INSTANCE(cpu_batchnorm_settle)
#define cpu_batchnorm_forward INSTANCE(cpu_batchnorm_forward)
#define cpu_batchnorm_sums INSTANCE(cpu_batchnorm_sums)
#define cpu_batchnorm_backward INSTANCE(cpu_batchnorm_backward)
#define cpu_patches_forward INSTANCE(cpu_patches_forward)
#define cpu_patches_backward INSTANCE(cpu_patches_backward)
#define cpu_pool_forward INSTANCE(cpu_pool_forward)
#define cpu_pool_backward INSTANCE(cpu_pool_backward)
#define cpu_attention_forward INSTANCE(cpu_attention_forward)
#define cpu_attention_backward INSTANCE(cpu_attention_backward)
#define cpu_cross_entropy INSTANCE(cpu_cross_entropy)
#define cpu_squared_error INSTANCE(cpu_squared_error)
#define cpu_linear_loss INSTANCE(cpu_linear_loss)
#define cpu_critic_loss INSTANCE(cpu_critic_loss)
#define cpu_gradient_penalty INSTANCE(cpu_gradient_penalty)
#define cpu_cast_rows INSTANCE(cpu_cast_rows)
#define cpu_cast INSTANCE(cpu_cast)
#define cpu_accumulate INSTANCE(cpu_accumulate)
#define cpu_check INSTANCE(cpu_check)
#define cpu_update INSTANCE(cpu_update)

#define CPU_KERNEL(name) typeof(*((struct kernel_table *)0)->name) cpu_##name

CPU_KERNEL(linear_forward);
CPU_KERNEL(linear_backward_input);
CPU_KERNEL(linear_backward_weight);
CPU_KERNEL(add);
CPU_KERNEL(activation_forward);
CPU_KERNEL(activation_backward);
CPU_KERNEL(dropout);
CPU_KERNEL(embedding_forward);
CPU_KERNEL(embedding_backward);
CPU_KERNEL(layernorm_forward);
CPU_KERNEL(layernorm_backward);
CPU_KERNEL(groupnorm_forward);
CPU_KERNEL(groupnorm_backward);
CPU_KERNEL(batchnorm_moments);
CPU_KERNEL(batchnorm_settle);
CPU_KERNEL(batchnorm_forward);
CPU_KERNEL(batchnorm_sums);
CPU_KERNEL(batchnorm_backward);
CPU_KERNEL(patches_forward);
CPU_KERNEL(patches_backward);
CPU_KERNEL(pool_forward);
CPU_KERNEL(pool_backward);
CPU_KERNEL(attention_forward);
CPU_KERNEL(attention_backward);
CPU_KERNEL(cross_entropy);
CPU_KERNEL(squared_error);
CPU_KERNEL(linear_loss);
CPU_KERNEL(critic_loss);
CPU_KERNEL(gradient_penalty);
CPU_KERNEL(cast_rows);
CPU_KERNEL(cast);
CPU_KERNEL(accumulate);
CPU_KERNEL(check);
CPU_KERNEL(update);

extern const struct kernel_table INSTANCE(cpu_table);

#endif
