/* Parameters are frozen inside a window: a checksum per tensor, taken before the first forward and compared before the
 * update. They are the same on all ranks: the report carries one checksum of them all, which the coordinator compares.
 */
#include <inttypes.h>
#include <string.h>

#include "worker/session_internal.h"

/* FNV-1a (Fowler, Noll, Vo) over words of eight bytes and the bytes that are left. Each is taken in by a bijection of
 * the sum, so no change of a single word goes unnoticed. */
static uint64_t checksum(const unsigned char *bytes, uint64_t count)
{
    const uint64_t prime = UINT64_C(1099511628211);
    uint64_t sum = UINT64_C(14695981039346656037), word;
    for (; count >= sizeof word; bytes += sizeof word, count -= sizeof word) {
        memcpy(&word, bytes, sizeof word);
        sum = (sum ^ word) * prime;
    }
    for (; count > 0; bytes++, count--) sum = (sum ^ *bytes) * prime;
    return sum;
}

static uint64_t self_check_every(const struct session *session)
{
    return session->job->control ? session->job->control->self_check : 0;
}

bool self_check_wanted(const struct session *session)
{
    return session->options.faults.self_check || self_check_every(session) > 0;
}

bool self_check_due(const struct session *session)
{
    if (session->options.faults.self_check) return true;
    uint64_t every = self_check_every(session);
    return every > 0 && session->machine.step % every == 0;
}

/* A sum for every tensor, one for the master parameters behind them. */
static int sum_up(struct session *session, uint64_t *sums, struct error *error)
{
    const struct tensor_table *table = &session->model->table;
    const void *parameters, *frozen, *master;
    size_t size = dtype_size(session->compute_type);
    int result = session_read(session, BUFFER_PARAMETERS, &parameters, error);
    if (!result) result = session_read(session, BUFFER_FROZEN, &frozen, error);
    if (!result) result = session_read(session, BUFFER_MASTER, &master, error);
    if (result) return result;
    for (size_t i = 0; i < table->count; i++) {
        const struct tensor *tensor = &table->tensors[i];
        sums[i] = checksum(element(tensor->frozen ? frozen : parameters, tensor->at, session->compute_type),
                           tensor->size * size);
    }
    sums[table->count] = checksum(master, session->kept * dtype_size(session->wide_type));
    return 0;
}

int self_check_remember(struct session *session, struct error *error)
{
    return sum_up(session, session->checksums, error);
}

int self_check_compare(struct session *session, struct error *error)
{
    const struct tensor_table *table = &session->model->table;
    uint64_t *before = session->checksums, *now = before + table->count + 1;
    int result = sum_up(session, now, error);
    if (result) return result;
    for (size_t i = 0; i <= table->count; i++) {
        if (before[i] == now[i]) continue;
        if (i == table->count)
            return error_set(error, STATUS_INTERNAL,
                             "step %" PRIu64 ": the master parameters changed inside the accumulation window",
                             session->machine.step);
        return error_set(error, STATUS_INTERNAL, "step %" PRIu64 ": tensor %s changed inside the accumulation window",
                         session->machine.step, table->tensors[i].name);
    }
    return 0;
}

uint64_t self_check_parameters(const struct session *session)
{
    uint64_t tensors = session->model->table.count;
    uint64_t sum = checksum((const unsigned char *)session->checksums, tensors * sizeof *session->checksums);
    return sum ? sum : 1;
}
