#include "daemon/gpt_config.h"

#include <errno.h>
#include <jansson.h>
#include <stdbool.h>

int gpt_config_write(const Gacc__V1__ModelSection *model, const char *path, struct error *error)
{
    const bool is_tanh = model->activation == GACC__V1__ACTIVATION__ACTIVATION_GELU_TANH;
    json_t *config =
        json_pack("{ss s[s] si si si si si ss sf sb sf sf sf sf ss}",                                    /**/
                  "model_type", "gpt2", "architectures", "GPT2LMHeadModel",                              /**/
                  "n_layer", (int)model->layers, "n_head", (int)model->heads,                            /**/
                  "n_embd", (int)model->width, "n_positions", (int)model->context,                       /**/
                  "vocab_size", (int)model->vocab, "activation_function", is_tanh ? "gelu_new" : "gelu", /**/
                  "layer_norm_epsilon", 1e-5, "tie_word_embeddings", (int)model->tie,                    /**/
                  "resid_pdrop", model->dropout, "embd_pdrop", model->dropout, "attn_pdrop", model->dropout,
                  "initializer_range", model->init_std, "torch_dtype", "float32");
    if (!config) return error_set(error, STATUS_INTERNAL, "%s: out of memory", path);
    errno = 0;
    int status = json_dump_file(config, path, JSON_INDENT(2) | JSON_REAL_PRECISION(12));
    int number = errno ? errno : EIO;
    json_decref(config);
    return status ? error_set_errno(error, STATUS_IO, number, "%s", path) : 0;
}
