#include "daemon/adapter_config.h"

#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "worker/model.h"

/* The layers that have an adapter, by the names that their tensors begin with. NULL: memory is out. */
static json_t *list_layers(const struct tensor_table *table)
{
    static const char end[] = ".lora_A.weight";
    json_t *layers = json_array();
    bool complete = layers != NULL;
    for (size_t i = table->fixed; i < table->count && complete; i++) {
        const char *name = table->tensors[i].name, *tail = strstr(name, end);
        if (tail) complete = json_array_append_new(layers, json_stringn(name, (size_t)(tail - name))) == 0;
    }
    if (!complete) json_decref(layers);
    return complete ? layers : NULL;
}

int adapter_config_write(const Gacc__V1__ModelSection *spec, const char *path, struct error *error)
{
    const bool is_gpt = spec->type == GACC__V1__MODEL_TYPE__MODEL_GPT;
    struct model *model;
    int status = model_open(&model, spec, DTYPE_FP32, error);
    if (status) return status;
    json_t *layers = list_layers(&model->table);
    model_close(model);
    json_t *config = layers ? json_pack("{ss si sf sf so ss sb so? sn}",                       /**/
                                        "peft_type", "LORA", "r", (int)spec->lora_rank,        /**/
                                        "lora_alpha", spec->lora_alpha,                        /**/
                                        "lora_dropout", spec->lora_dropout,                    /**/
                                        "target_modules", layers, "bias", "none",              /**/
                                        "fan_in_fan_out", (int)is_gpt,                         /**/
                                        "task_type", is_gpt ? json_string("CAUSAL_LM") : NULL, /**/
                                        "base_model_name_or_path")
                            : NULL;
    if (!config) return error_set(error, STATUS_INTERNAL, "%s: out of memory", path);
    errno = 0;
    status = json_dump_file(config, path, JSON_INDENT(2) | JSON_REAL_PRECISION(12));
    int number = errno ? errno : EIO;
    json_decref(config);
    return status ? error_set_errno(error, STATUS_IO, number, "%s", path) : 0;
}

int adapter_readme_write(const Gacc__V1__ModelSection *model, const char *path, struct error *error)
{
    FILE *file = fopen(path, "w");
    if (!file) return error_set_errno(error, STATUS_IO, errno, "%s", path);
    fprintf(
        file,
        "model.safetensors is the whole model, its adapters merged: each adapted weight is W + alpha/rank * B*A, of\n"
        "the shape and name it has in the base. It is used as any model without adapters, and can be their base.\n\n"
        "adapter/ holds the adapters alone (rank %u, alpha %g), for the base they were trained on, as the peft\n"
        "library loads them. One or the other: on top of model.safetensors the adapters would count twice.\n",
        model->lora_rank, model->lora_alpha);
    const bool failed = ferror(file);
    return fclose(file) || failed ? error_set_errno(error, STATUS_IO, errno ? errno : EIO, "%s", path) : 0;
}
