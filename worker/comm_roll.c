#include "worker/comm_roll.h"

#include <inttypes.h>
#include <stdlib.h>

static const char *const calls[] = {
    [CALL_REDUCE_SCATTER] = "a reduction",
    [CALL_ALL_GATHER] = "a gathering",
    [CALL_BROADCAST] = "a broadcast",
    [CALL_BARRIER] = "a barrier",
    [CALL_DUPLICATE] = "the duplicate of a communicator",
};

void comm_call_roll(struct comm *comm, struct comm *roll)
{
    if (roll) roll->astray = false;
    comm->roll = roll;
}

bool comm_is_astray(const struct comm *comm)
{
    return comm->roll && comm->roll->astray;
}

static uint32_t count(const uint64_t *tickets, uint32_t ranks, uint64_t ticket)
{
    uint32_t found = 0;
    for (uint32_t rank = 0; rank < ranks; rank++) found += tickets[rank] == ticket;
    return found;
}

/* Fewer than half of the ranks do as it does; where there are no fewer, rank 0 is right. */
static uint32_t find_astray(const uint64_t *tickets, uint32_t ranks)
{
    uint32_t astray = 0;
    while (astray < ranks && 2 * count(tickets, ranks, tickets[astray]) >= ranks) astray++;
    if (astray < ranks) return astray;
    for (astray = 1; tickets[astray] == tickets[0];) astray++;
    return astray;
}

static int judge(struct comm *roll, const uint64_t *tickets, struct error *error)
{
    roll->astray = count(tickets, roll->ranks, tickets[0]) != roll->ranks;
    if (!roll->astray) return 0;
    const uint32_t odd = find_astray(tickets, roll->ranks), other = odd == 0;
    return error_set(error, STATUS_INTERNAL,
                     "rank %" PRIu32 " calls %s where rank %" PRIu32 " calls %s: all ranks must make the same "
                     "collective calls",
                     odd, calls[tickets[odd] >> 32], other, calls[tickets[other] >> 32]);
}

/* A ticket of each, gathered as eight bytes that are moved and never looked at as a number. */
int comm_meet(struct comm *comm, enum comm_call call, uint32_t detail, struct error *error)
{
    struct comm *roll = comm->roll;
    if (!roll || roll->ranks == 1) return 0;
    uint64_t *tickets = calloc(roll->ranks, sizeof *tickets);
    struct range *parts = calloc(roll->ranks, sizeof *parts);
    int result = 0;
    if (!tickets || !parts) result = error_set(error, STATUS_INTERNAL, "out of memory for %u ranks", roll->ranks);
    for (uint32_t rank = 0; rank < roll->ranks && !result; rank++) parts[rank] = (struct range){rank, rank + 1};
    if (!result) {
        tickets[roll->rank] = (uint64_t)call << 32 | detail;
        result = roll->class->all_gather(roll, 0, tickets, DTYPE_FP64, parts, error);
    }
    if (!result) result = judge(roll, tickets, error);
    free(tickets);
    free(parts);
    return result;
}
