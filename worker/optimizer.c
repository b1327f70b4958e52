#include "worker/optimizer.h"

#include "worker/memory.h"

static void lay_out(struct optimizer *optimizer, struct carver *carver)
{
    const struct update *constants = &optimizer->constants;
    bool adamw = constants->kind == OPTIMIZER_KIND_ADAMW;
    size_t bytes = optimizer->elements * dtype_size(optimizer->wide_type);
    optimizer->m = adamw || constants->momentum > 0 ? carve(carver, bytes) : NULL;
    optimizer->v = adamw ? carve(carver, bytes) : NULL;
}

int optimizer_open(struct optimizer *optimizer, struct kernels *kernels, const Gacc__V1__OptimizerSection *spec,
                   enum dtype wide_type, uint64_t elements, struct error *error)
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
        .kernels = kernels,
    };
    struct carver carver = {0};
    lay_out(optimizer, &carver);
    int result = memory_reserve(kernels, &optimizer->arena, carver.used, "the optimizer's moments", error);
    carver = (struct carver){.base = (uintptr_t)optimizer->arena};
    lay_out(optimizer, &carver);
    return result;
}

static wide *at(const struct optimizer *optimizer, wide *buffer, uint64_t element)
{
    return buffer ? (char *)buffer + element * dtype_size(optimizer->wide_type) : NULL;
}

void optimizer_apply(struct optimizer *optimizer, const struct layout *layout, const struct run *runs, size_t run_count,
                     wide *master, const wide *gradient, const struct optimizer_step *step)
{
    struct update update = optimizer->constants;
    update.unscale = step->unscale;
    for (const struct run *run = runs; run < runs + run_count; run++) {
        const struct group *group = &layout->groups[run->group];
        update.lr = step->lr * group->lr_ratio;
        update.weight_decay = group->weight_decay;
        update.t = step->t - run->since;
        optimizer->kernels->table->update(
            optimizer->kernels, at(optimizer, master, run->first), at(optimizer, optimizer->m, run->first),
            at(optimizer, optimizer->v, run->first),
            (const char *)gradient + run->first * dtype_size(optimizer->wide_type), run->count, &update);
    }
}

void optimizer_close(struct optimizer *optimizer)
{
    if (optimizer->kernels) optimizer->kernels->table->release(optimizer->kernels, optimizer->arena);
    optimizer->arena = NULL;
}
