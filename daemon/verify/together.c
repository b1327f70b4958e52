#include "daemon/verify/together.h"

#include <stdlib.h>

/* What a trial is, without pointers. job_bytes 0: it is over. The packed job follows. */
struct call {
    uint64_t job_bytes, steps, train;
    struct faults faults;
    enum decision_fault decision_fault;
    bool reference, reversed;
};

int together_run(struct trial *trial, const struct trial_spec *spec, struct error *error)
{
    struct call call = {
        .job_bytes = gacc__v1__job_spec__get_packed_size(spec->job),
        .steps = spec->steps,
        .train = spec->train,
        .faults = spec->faults,
        .decision_fault = spec->decision_fault,
        .reference = spec->reference,
        .reversed = spec->reversed,
    };
    uint8_t *packed = malloc(call.job_bytes);
    if (!packed) return error_set(error, STATUS_INTERNAL, "out of memory for a job");
    gacc__v1__job_spec__pack(spec->job, packed);
    int result = comm_broadcast(spec->launcher, &call, sizeof call, 0, error);
    if (!result) result = comm_broadcast(spec->launcher, packed, call.job_bytes, 0, error);
    free(packed);
    return result ? result : trial_run(trial, spec, error);
}

void together_end(struct comm *comm)
{
    struct call over = {0};
    comm_broadcast(comm, &over, sizeof over, 0, NULL);
}

static int take_part(struct comm *comm, const struct device *device, const struct call *call, struct error *error)
{
    uint8_t *packed = malloc(call->job_bytes);
    if (!packed) return error_set(error, STATUS_INTERNAL, "out of memory for a job");
    int result = comm_broadcast(comm, packed, call->job_bytes, 0, error);
    Gacc__V1__JobSpec *job = result ? NULL : gacc__v1__job_spec__unpack(NULL, call->job_bytes, packed);
    free(packed);
    if (result) return result;
    if (!job) return error_set(error, STATUS_INTERNAL, "the job cannot be read as rank 0 sent it");
    const struct trial_spec spec = {
        .job = job,
        .launcher = comm,
        .device = device,
        .steps = call->steps,
        .train = call->train,
        .reference = call->reference,
        .reversed = call->reversed,
        .faults = call->faults,
        .decision_fault = call->decision_fault,
    };
    struct trial trial;
    struct error failed;
    if (!trial_run(&trial, &spec, &failed)) trial_free(&trial);
    gacc__v1__job_spec__free_unpacked(job, NULL);
    return 0;
}

int together_serve(struct comm *comm, const struct device *device, struct error *error)
{
    for (;;) {
        struct call call = {0};
        int result = comm_broadcast(comm, &call, sizeof call, 0, error);
        if (result || !call.job_bytes) return result;
        if ((result = take_part(comm, device, &call, error))) return result;
    }
}
