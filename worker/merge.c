#include "worker/merge.h"

#include <stdlib.h>
#include <string.h>

#include "worker/memory.h"
#include "worker/models/linear.h"

int merge_open(struct merge *merge, const struct session *session, struct error *error)
{
    const struct tensor_table *table = &session->model->table;
    void *adapters;
    *merge = (struct merge){.model = session->model, .wide_type = session->wide_type};
    if (table->fixed == 0) return 0;
    merge->first = table->tensors[table->fixed].begin;
    int result =
        memory_new(&adapters, table->parameters - merge->first, dtype_size(merge->wide_type), "the adapters", error);
    if (!result) merge->adapters = adapters;
    return result;
}

void merge_close(struct merge *merge)
{
    free(merge->adapters);
    merge->adapters = NULL;
}

static wide *adapter_at(const struct merge *merge, uint64_t canonical)
{
    return element(merge->adapters, canonical - merge->first, merge->wide_type);
}

/* What `rank` keeps of the adapters, to all. */
static int spread(const struct merge *merge, const struct session *session, uint32_t rank, const void *master,
                  struct error *error)
{
    const size_t size = dtype_size(merge->wide_type);
    struct comm *comm = session->comm;
    struct piece *pieces;
    size_t count;
    int result = layout_pieces(&session->layout, &merge->model->table, &session->map, rank, &pieces, &count, error);
    if (result) return result;
    for (size_t i = 0; i < count && !result; i++) {
        const struct piece *piece = &pieces[i];
        const uint64_t begin = piece->begin > merge->first ? piece->begin : merge->first;
        if (begin >= piece->end) continue;
        const uint64_t bytes = (piece->end - begin) * size;
        if (rank == comm->rank)
            memcpy(adapter_at(merge, begin), element(master, piece->at + (begin - piece->begin), merge->wide_type),
                   bytes);
        result = comm_broadcast(comm, adapter_at(merge, begin), bytes, rank, error);
    }
    free(pieces);
    return result;
}

int merge_gather(struct merge *merge, const struct session *session, const void *master, struct error *error)
{
    int result = 0;
    for (uint32_t rank = 0; rank < session->comm->ranks && merge->adapters && !result; rank++)
        result = spread(merge, session, rank, master, error);
    return result;
}

static double adapter_value(const struct merge *merge, const struct tensor *tensor, uint64_t index)
{
    const wide *value = adapter_at(merge, tensor->begin + index);
    return merge->wide_type == DTYPE_FP64 ? *(const double *)value : (double)*(const float *)value;
}

/* alpha/rank·(B·A) of one element of the weight, added up in double. */
static double update_of(const struct merge *merge, const struct linear *linear, uint64_t index)
{
    const uint64_t rank = linear->a->shape[0], in = linear->a->shape[1], columns = linear->weight->shape[1];
    const bool is_in_out = linear->layout == WEIGHT_IN_OUT;
    const uint64_t row = index / columns, column = index % columns;
    const uint64_t from = is_in_out ? row : column, to = is_in_out ? column : row;
    double sum = 0;
    for (uint64_t r = 0; r < rank; r++)
        sum += adapter_value(merge, linear->b, to * rank + r) * adapter_value(merge, linear->a, r * in + from);
    return linear->factor * sum;
}

void merge_add(const struct merge *merge, uint64_t begin, uint64_t end, wide *values)
{
    for (size_t l = 0; merge->adapters && l < merge->model->linear_count; l++) {
        const struct linear *linear = merge->model->linears[l];
        if (!linear->a) continue;
        const struct tensor *weight = linear->weight;
        const struct range part =
            range_of_both((struct range){begin, end}, (struct range){weight->begin, weight->begin + weight->size});
        for (uint64_t i = part.begin; i < part.end; i++) {
            wide *value = element(values, i - begin, merge->wide_type);
            const double update = update_of(merge, linear, i - weight->begin);
            if (merge->wide_type == DTYPE_FP64)
                *(double *)value += update;
            else
                *(float *)value = (float)((double)*(float *)value + update);
        }
    }
}
