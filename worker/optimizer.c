#include "worker/optimizer.h"

#include "worker/memory.h"

static void lay_out(struct optimizer *optimizer, struct carver *carver)
{
    const size_t size = dtype_size(optimizer->wide_type);
    optimizer->m = optimizer->count.m > 0 ? carve(carver, optimizer->count.m * size) : NULL;
    optimizer->v = optimizer->count.v > 0 ? carve(carver, optimizer->count.v * size) : NULL;
}

int optimizer_open(struct optimizer *optimizer, struct kernels *kernels, enum dtype wide_type, struct moments_at count,
                   struct error *error)
{
    *optimizer = (struct optimizer){.wide_type = wide_type, .kernels = kernels, .count = count};
    struct carver carver = {0};
    lay_out(optimizer, &carver);
    int result = memory_reserve(kernels, &optimizer->arena, carver.used, "the optimizer's moments", error);
    carver = (struct carver){.base = (uintptr_t)optimizer->arena};
    lay_out(optimizer, &carver);
    return result;
}

static wide *at(const struct optimizer *optimizer, wide *buffer, uint64_t element)
{
    return element == NO_MOMENT ? NULL : (char *)buffer + element * dtype_size(optimizer->wide_type);
}

void optimizer_apply(struct optimizer *optimizer, const struct layout *layout, const struct run *runs, size_t run_count,
                     wide *master, const wide *gradient, const struct optimizer_step *step)
{
    for (const struct run *run = runs; run < runs + run_count; run++) {
        const struct group *group = &layout->groups[run->group];
        struct update update = group->rule;
        update.lr = step->lr * group->lr_ratio;
        update.unscale = step->unscale;
        update.t = step->t - run->since;
        optimizer->kernels->table->update(
            optimizer->kernels, at(optimizer, master, run->first), at(optimizer, optimizer->m, run->moments.m),
            at(optimizer, optimizer->v, run->moments.v),
            (const char *)gradient + run->first * dtype_size(optimizer->wide_type), run->count, &update);
    }
}

void optimizer_close(struct optimizer *optimizer)
{
    if (optimizer->kernels) optimizer->kernels->table->release(optimizer->kernels, optimizer->arena);
    optimizer->arena = NULL;
}
