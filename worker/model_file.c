#include "worker/model_file.h"

#include <stdio.h>
#include <stdlib.h>

#include "worker/safetensors.h"

#define PREFIX_MOST 32

struct rows {
    size_t first, end;
};

static struct rows rows_of(const struct tensor_table *table, enum model_content content)
{
    const size_t base = table->fixed ? table->fixed : table->count;
    return content == MODEL_STATE    ? (struct rows){0, table->count}
           : content == MODEL_MERGED ? (struct rows){0, base}
                                     : (struct rows){base, table->count};
}

/* What stands before the names of adapters alone: the model inside peft's wrapper, and inside the transformers
 * library's model with its head. */
static const char *prefix_of(const struct model *model, enum model_content content)
{
    if (content != MODEL_ADAPTERS) return "";
    return model->spec->type == GACC__V1__MODEL_TYPE__MODEL_GPT ? "base_model.model.transformer." : "base_model.model.";
}

int model_file_lay_out(struct model_file *file, const struct model *model, enum model_content content,
                       enum dtype wide_type, struct error *error)
{
    const struct tensor_table *table = &model->table, *zeros = &model->zeros;
    const struct rows rows = rows_of(table, content);
    const size_t own = rows.end - rows.first, count = own + (content == MODEL_ADAPTERS ? 0 : zeros->count);
    *file = (struct model_file){0};
    struct safetensors_tensor *entries = calloc(count, sizeof *entries);
    char(*names)[PREFIX_MOST + sizeof table->tensors->name] = calloc(count, sizeof *names);
    if (!entries || !names) {
        free(entries);
        free(names);
        return error_set(error, STATUS_INTERNAL, "out of memory for %zu tensors", count);
    }
    for (size_t i = 0; i < count; i++) {
        const struct tensor *tensor = i < own ? &table->tensors[rows.first + i] : &zeros->tensors[i - own];
        snprintf(names[i], sizeof names[i], "%s%s", prefix_of(model, content), tensor->name);
        entries[i].name = names[i];
        entries[i].type = safetensors_type_of(wide_type);
        entries[i].dimensions = tensor->dimensions;
        entries[i].shape = tensor->shape;
    }
    int result = safetensors_header(entries, count, &file->header, &file->header_bytes, error);
    if (own > 0) {
        const struct tensor *last = &table->tensors[rows.end - 1];
        file->holds = (struct range){table->tensors[rows.first].begin, last->begin + last->size};
    }
    file->zeros_at = file->header_bytes + (file->holds.end - file->holds.begin) * dtype_size(wide_type);
    file->bytes = file->header_bytes;
    for (size_t i = 0; i < count && !result; i++) file->bytes += entries[i].bytes;
    free(entries);
    free(names);
    return result;
}

void model_file_close(struct model_file *file)
{
    free(file->header);
    *file = (struct model_file){0};
}
