/* The kernels of one instance. */
#include "kernels/cpu/element.h"
#include "kernels/cpu/instance.h"
#include "kernels/host_memory.h"

const struct kernel_table INSTANCE(cpu_table) = {
    .name = "cpu",
    .close = cpu_close,
    .on_host = true,
    .allocate = host_allocate,
    .release = host_release,
    .clear = host_clear,
    .copy = host_copy,
    .upload = host_copy,
    .download = host_download,
    .wait = host_wait,
    .memory_left = host_memory_left,
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
    .linear_loss = cpu_linear_loss,
    .cast_rows = cpu_cast_rows,
    .cast = cpu_cast,
    .accumulate = cpu_accumulate,
    .check = cpu_check,
    .update = cpu_update,
};
