/* NCCL's operations as state machines that never wait: `step` does what is possible now. */
#ifndef SIM_NCCL_TRANSFER_H
#define SIM_NCCL_TRANSFER_H

#include "nccl_meeting.h"
#include "stream.h"

#include <nccl.h>

namespace sim
{

enum class transfer_kind { all_reduce, reduce_scatter, all_gather, broadcast, reduce, send, receive };

/* One call of the program. */
struct transfer {
    transfer_kind kind;
    const void *send;
    void *receive;
    size_t count; /* elements, as the call has it */
    ncclDataType_t type;
    ncclRedOp_t reduction;
    int root; /* or the peer */
};

const char *transfer_name(transfer_kind kind);

/* Bytes of an element; 0: the type is not simulated. */
size_t element_bytes(ncclDataType_t type);

/* Bytes that the call reads and writes on this rank. */
size_t send_bytes(const transfer &transfer, int rank, int ranks);
size_t receive_bytes(const transfer &transfer, int rank, int ranks);

/* out[0…n) = in[0][…] ∘ in[1][…] ∘ …, in the order of ranks, rounded to the type after each. */
void reduce(void *out, const char *const *in, int ranks, size_t n, ncclDataType_t type, ncclRedOp_t reduction);

/* The transfers of one group on one stream, as operation `number` of its communicator: collectives one after the other,
 * then all sends and receives at a time. */
class transfers
{
  public:
    transfers(std::shared_ptr<meeting> meeting, std::vector<transfer> calls, uint64_t number, uint64_t *pieces);
    progress step();

    /* End without data: what would have been received is poison. */
    void abandon();

  private:
    struct ongoing {
        transfer call;
        size_t done; /* elements; of a receive and a send, those taken or posted */
        bool posted; /* the piece at `done`, by this rank */
    };
    progress step_collective(ongoing &part);
    progress step_send(ongoing &part);
    progress step_receive(ongoing &part);
    size_t piece_elements(const transfer &call) const;
    void fill_piece(const ongoing &part, size_t n, char *to) const;
    void use_pieces(const ongoing &part, size_t n, const char *const *pieces) const;
    piece_label label(const transfer &call) const;
    void check(const transfer &call, const piece_label &theirs, int rank) const;

    std::shared_ptr<meeting> meeting_;
    std::vector<ongoing> parts_;
    uint64_t number_;
    uint64_t *pieces_; /* how many collective pieces of this communicator are behind */
};

} // namespace sim

#endif
