#include "worker/optimizer.h"

#include <stdlib.h>

#include "worker/memory.h"

int optimizer_open(struct optimizer *optimizer, const Gacc__V1__OptimizerSection *spec, enum dtype wide_type,
                   uint64_t elements, struct error *error)
{
    bool adamw = spec->type == GACC__V1__OPTIMIZER_TYPE__OPTIMIZER_ADAMW;
    *optimizer = (struct optimizer){
        .constants = {.kind = adamw ? OPTIMIZER_KIND_ADAMW : OPTIMIZER_KIND_SGD,
                      .beta1 = spec->beta1,
                      .beta2 = spec->beta2,
                      .eps = spec->eps,
                      .momentum = adamw ? 0 : spec->momentum},
        .wide_type = wide_type,
        .elements = elements,
    };
    size_t size = dtype_size(wide_type);
    int result = 0;
    if (adamw || spec->momentum > 0) result = memory_new(&optimizer->m, elements, size, "the first moments", error);
    if (!result && adamw) result = memory_new(&optimizer->v, elements, size, "the second moments", error);
    if (result) optimizer_close(optimizer);
    return result;
}

uint64_t optimizer_bytes(const struct optimizer *optimizer)
{
    uint64_t buffers = (optimizer->m ? 1u : 0u) + (optimizer->v ? 1u : 0u);
    return buffers * optimizer->elements * dtype_size(optimizer->wide_type);
}

static wide *at(const struct optimizer *optimizer, wide *buffer, uint64_t element)
{
    return buffer ? (char *)buffer + element * dtype_size(optimizer->wide_type) : NULL;
}

void optimizer_apply(struct optimizer *optimizer, struct kernels *kernels, const struct layout *layout,
                     const struct run *runs, size_t run_count, wide *master, const wide *gradient,
                     const struct optimizer_step *step)
{
    struct update update = optimizer->constants;
    update.unscale = step->unscale;
    update.t = step->t;
    for (const struct run *run = runs; run < runs + run_count; run++) {
        const struct group *group = &layout->groups[run->group];
        update.lr = step->lr * group->lr_ratio;
        update.weight_decay = group->weight_decay;
        kernels->table->update(kernels, at(optimizer, master, run->first), at(optimizer, optimizer->m, run->first),
                               at(optimizer, optimizer->v, run->first),
                               (const char *)gradient + run->first * dtype_size(optimizer->wide_type), run->count,
                               &update);
    }
}

void optimizer_close(struct optimizer *optimizer)
{
    free(optimizer->m);
    free(optimizer->v);
    optimizer->m = optimizer->v = NULL;
}
