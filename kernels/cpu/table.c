/* The kernels of one instance. */
#include "kernels/cpu/element.h"
#include "kernels/cpu/instance.h"

const struct kernel_table INSTANCE(cpu_table) = {
    .name = "cpu",
    .close = cpu_close,
    .linear_forward = cpu_linear_forward,
    .linear_backward_input = cpu_linear_backward_input,
    .linear_backward_weight = cpu_linear_backward_weight,
    .add = cpu_add,
    .activation_forward = cpu_activation_forward,
    .activation_backward = cpu_activation_backward,
    .dropout = cpu_dropout,
    .embedding_forward = cpu_embedding_forward,
    .embedding_backward = cpu_embedding_backward,
    .layernorm_forward = cpu_layernorm_forward,
    .layernorm_backward = cpu_layernorm_backward,
    .attention_forward = cpu_attention_forward,
    .attention_backward = cpu_attention_backward,
    .cross_entropy = cpu_cross_entropy,
    .squared_error = cpu_squared_error,
    .cast = cpu_cast,
    .accumulate = cpu_accumulate,
    .check = cpu_check,
    .update = cpu_update,
};
