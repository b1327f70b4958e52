/*
 * Collectives between workers. One reduce-scatter of gradients and one all-gather of parameters per bucket and
 * optimizer step; this wrapper alone counts calls and bytes, at the place where the transport is called.
 *
 * A transport whose class has a `join` works beside the kernels that are asked for after a collective was started, and
 * after those that were asked for before; what comes after a join comes after the collective, too, and after all that
 * were started before it: they run one after the other. The others, for memory of the host, are done when they return.
 */
#ifndef GACC_COMM_H
#define GACC_COMM_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/kernels.h"
#include "proto/error.h"

/* A contiguous run of an index. */
struct range {
    uint64_t begin, end;
};
/* What is in both; begin ≥ end: nothing. */
static inline struct range range_of_both(struct range a, struct range b)
{
    return (struct range){a.begin > b.begin ? a.begin : b.begin, a.end < b.end ? a.end : b.end};
}

/* Who owns which parameters: every bucket is cut into N equal parts, rank r owning the r-th. Of the last bucket N parts
 * may reach beyond the parameters: there the last ranks own less than a part, or nothing. A transport may read and
 * write whole parts, so buffers have room for them (shard_map_room, shard_map_shard_room). */
struct shard_map {
    uint64_t parameters;
    uint32_t ranks;
    uint32_t bucket_count;
    uint64_t bucket_elements; /* of every bucket but the last; a multiple of ranks */
};
/* bucket_limit: the largest number of elements in one collective call, when it is not below `ranks`. */
#define COMM_BUCKET_LIMIT (UINT64_C(1) << 30) /* MPI counts and displacements are int */
void shard_map_init(struct shard_map *map, uint64_t parameters, uint32_t ranks, uint64_t bucket_limit);
struct range shard_map_bucket(const struct shard_map *map, uint32_t bucket);
struct range shard_map_range(const struct shard_map *map, uint32_t bucket, uint32_t rank);
/* Elements a rank owns in all; its shard buffer holds its ranges one after the other in bucket order. */
uint64_t shard_map_owned(const struct shard_map *map, uint32_t rank);
/* Where a bucket's range begins in the shard buffer. */
uint64_t shard_map_offset(const struct shard_map *map, uint32_t bucket);
/* Elements that the flat buffers, and a shard buffer, must have room for. */
uint64_t shard_map_room(const struct shard_map *map);
uint64_t shard_map_shard_room(const struct shard_map *map);

/* Bytes are the payload this rank sends by the collective's algebra: a reduce-scatter sends everything but the rank's
 * own part, an all-gather the own part to each of the others. Over all ranks both are elements·size·(N−1), a rank's
 * mean size·(N−1)/N. */
struct comm_counts {
    uint32_t reduce_scatter, all_gather, control; /* calls of the transport */
    uint64_t reduce_scatter_bytes, all_gather_bytes;
    uint32_t statistics; /* of sets of rows (statistics.h): its caller counts them here */
    uint64_t statistics_bytes;
};

struct comm {
    const struct comm_class *class;
    uint32_t rank, ranks;
    uint32_t local_rank, local_ranks; /* on this host */
    uint32_t local_cores;             /* that this host's ranks may use, all of them together */
    uint64_t bucket_limit;            /* elements that the transport wants in one call, for shard_map_init */
    bool rounds;               /* fp32 gradients are sent as bf16 (comm_rounded.h); set before the first reduction */
    char transport[64];        /* name and version, for the log */
    struct comm_counts counts; /* since the caller last cleared it */
    struct comm *roll;         /* NULL, or what comm_roll.h has ranks meet on before each call … */
    bool astray;               /* … where they last did not */
};

/* One transport call each, of one bucket. `parts` [ranks] are the ranks' ranges of the trained index, contiguous and
 * in rank order; `gradients` and `parameters` are the whole flat buffers, `shard` is where this rank's part goes. */
struct comm_class {
    int (*reduce_scatter)(struct comm *, uint32_t bucket, const wide *gradients, wide *shard, enum dtype wide_type,
                          const struct range *parts, struct error *);
    int (*all_gather)(struct comm *, uint32_t bucket, compute *parameters, enum dtype compute_type,
                      const struct range *parts, struct error *);
    int (*join)(struct comm *, uint32_t bucket, struct error *); /* NULL: done on return */
    int (*broadcast)(struct comm *, void *bytes, uint64_t count, uint32_t root,
                     struct error *);                                               /* counted as control */
    int (*barrier)(struct comm *, struct error *);                                  /* counted as control */
    int (*duplicate)(struct comm *, struct comm **, struct error *);                /* counted as nothing */
    bool (*tell)(struct comm *, const void *bytes, uint64_t count, double seconds); /* NULL: there is nobody to hear */
    bool (*hear)(struct comm *, void *bytes, uint64_t count);                       /* NULL: nobody tells anything */
    void (*progress)(struct comm *);                                                /* NULL: goes on by itself */
    void (*abort)(struct comm *, int status) __attribute__((noreturn)); /* from any thread: ends process and job */
    void (*close)(struct comm *);
};

/* Starts the reduction of one bucket: `shard` (the whole buffer) receives the sum of this rank's range. All ranks call
 * the collectives of one communicator in the same order. */
int comm_reduce_scatter_bucket(struct comm *comm, const struct shard_map *map, uint32_t bucket, const wide *gradients,
                               wide *shard, enum dtype wide_type, struct error *error);
/* Starts an all-gather in place: this rank's range of the bucket is sent, all others received. */
int comm_all_gather_bucket(struct comm *comm, const struct shard_map *map, uint32_t bucket, compute *parameters,
                           enum dtype compute_type, struct error *error);
/* Kernels that are asked for from here on come after the collective last started of this bucket. */
int comm_join(struct comm *comm, uint32_t bucket, struct error *error);
/* Whether there is anything to join. */
bool comm_overlaps(const struct comm *comm);

/* All buckets, and joined: gradients from the last to the first, as their backward completes them; parameters from the
 * first to the last, as the forward wants them. */
int comm_reduce_scatter(struct comm *comm, const struct shard_map *map, const wide *gradients, wide *shard,
                        enum dtype wide_type, struct error *error);
int comm_all_gather(struct comm *comm, const struct shard_map *map, compute *parameters, enum dtype compute_type,
                    struct error *error);
/* Counted as control: never part of an optimizer step. */
int comm_broadcast(struct comm *comm, void *bytes, uint64_t count, uint32_t root, struct error *error);
int comm_barrier(struct comm *comm, struct error *error);
/* Moves what is still under way. A collective that has returned here may have left bytes behind that another rank waits
 * for, and MPI moves bytes only while it is called: whoever waits for anything but a collective calls this meanwhile.
 * Communicates nothing new and is not counted. */
void comm_progress(struct comm *comm);
/* So many bytes to rank 0, from one that makes no other call any more; whether rank 0 has heard them within so many
 * seconds. Not counted. */
bool comm_tell(struct comm *comm, const void *bytes, uint64_t count, double seconds);
/* Rank 0, when it waits for anything but a collective: as comm_progress, and whether a rank has told something. */
bool comm_hear(struct comm *comm, void *bytes, uint64_t count);
__attribute__((noreturn)) void comm_abort(struct comm *comm, int status);
void comm_close(struct comm *comm);
/* The same ranks once more, with counts of its own: all ranks together. What travels on one never meets the other. */
int comm_duplicate(struct comm *comm, struct comm **out, struct error *error);

/* MPI must be initialised (MPI_THREAD_FUNNELED or better) and stay so until comm_close. */
int comm_open_mpi(struct comm **out, struct error *error);
/* One rank, no transport: N = 1 without an MPI library in use. Collectives still count 1, with 0 bytes. */
int comm_open_alone(struct comm **out, struct error *error);
/* Ranks that are threads of this process. members: [ranks], each for a thread of its own and closed by itself. Every
 * member must take part in every collective: the others wait for it. */
int comm_open_local(struct comm **members, uint32_t ranks, struct error *error);
/* The ranks of `host`, a communicator of host memory, for the memory of `kernels`, which is not: every bucket goes by
 * way of the host. One rank alone sends nothing and its gradient stays where it is. Both are borrowed; `parameters` is
 * that of the shard maps it will see. */
int comm_open_staged(struct comm **out, struct comm *host, struct kernels *kernels, uint64_t parameters,
                     struct error *error);

#endif
