/* Where the processes of a communicator meet: a file that all of them map, in which they leave data for each other.
 *
 * Nothing here waits. Every rank posts numbered pieces into its own two slots and reads those of all others; a slot is
 * written again when every rank has consumed the piece before the last. Pairs of ranks have a channel of one piece
 * besides. Who lives holds a lock on a byte of the file, which the kernel takes away however a process ends.
 */
#ifndef SIM_NCCL_MEETING_H
#define SIM_NCCL_MEETING_H

#include <cstddef>
#include <cstdint>
#include <string>

namespace sim
{

const int max_ranks = 16;
const size_t piece_bytes = 256 * 1024; /* of a slot or a channel */

/* What a piece belongs to; it must be the same on all ranks. */
struct piece_label {
    uint64_t operation; /* of this communicator, counted from 1 */
    uint64_t count;     /* elements that the program gave */
    int32_t kind, type, reduction, root;
};

/* A piece that is there, or not yet (`data` NULL). */
struct piece {
    const piece_label *label;
    const char *data;
};

class meeting
{
  public:
    /* A new file's path; empty: it could not be made. */
    static std::string create();

    meeting() = default;
    meeting(const meeting &) = delete;
    meeting &operator=(const meeting &) = delete;
    ~meeting();

    /* Take part as `rank` of `ranks`, with the device of that number. False: there is no such file, or the others have
     * another number of ranks, or somebody has this rank. */
    bool join(const std::string &path, int ranks, int rank, int device);

    /* Whether all have joined; then the file's name goes. */
    bool complete();

    /* Two ranks of one host with the same device, which NCCL refuses. */
    bool shares_a_device() const;

    /* A rank that has joined and is gone without having left; −1: none. */
    int dead_rank() const;
    void leave();

    /* The caller's place for piece `number` (from 0), once it has used all pieces before. */
    char *place(uint64_t number);
    void post(uint64_t number, const piece_label &label);
    piece posted(int rank, uint64_t number) const;

    /* The channel from the caller to `peer`, and from `peer` to the caller: one piece at a time. */
    char *channel_place(int peer);
    void channel_post(int peer, const piece_label &label);
    bool channel_empty(int peer) const; /* the last piece has been taken */
    piece channel_posted(int peer) const;
    void channel_take(int peer);

    int ranks() const
    {
        return ranks_;
    }
    int rank() const
    {
        return rank_;
    }

  private:
    struct shared;
    shared *shared_ = nullptr;
    int file_ = -1, ranks_ = 0, rank_ = 0;
    std::string path_; /* empty: its name is gone */
};

} // namespace sim

#endif
