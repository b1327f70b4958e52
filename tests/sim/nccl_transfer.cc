#include "nccl_transfer.h"

#include "settings.h"

#include <algorithm>
#include <cstring>

namespace sim
{

const char *transfer_name(transfer_kind kind)
{
    switch (kind) {
    case transfer_kind::all_reduce:
        return "ncclAllReduce";
    case transfer_kind::reduce_scatter:
        return "ncclReduceScatter";
    case transfer_kind::all_gather:
        return "ncclAllGather";
    case transfer_kind::broadcast:
        return "ncclBroadcast";
    case transfer_kind::reduce:
        return "ncclReduce";
    case transfer_kind::send:
        return "ncclSend";
    case transfer_kind::receive:
        return "ncclRecv";
    }
    return "";
}

size_t element_bytes(ncclDataType_t type)
{
    switch (type) {
    case ncclInt8:
    case ncclUint8:
        return 1;
    case ncclFloat16:
    case ncclBfloat16:
        return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
        return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
        return 8;
    default:
        return 0;
    }
}

size_t send_bytes(const transfer &transfer, int rank, int ranks)
{
    size_t bytes = transfer.count * element_bytes(transfer.type);
    if (transfer.kind == transfer_kind::reduce_scatter) return bytes * size_t(ranks);
    if (transfer.kind == transfer_kind::broadcast) return rank == transfer.root ? bytes : 0;
    return transfer.kind == transfer_kind::receive ? 0 : bytes;
}

size_t receive_bytes(const transfer &transfer, int rank, int ranks)
{
    size_t bytes = transfer.count * element_bytes(transfer.type);
    if (transfer.kind == transfer_kind::all_gather) return bytes * size_t(ranks);
    if (transfer.kind == transfer_kind::reduce) return rank == transfer.root ? bytes : 0;
    return transfer.kind == transfer_kind::send ? 0 : bytes;
}

transfers::transfers(std::shared_ptr<meeting> meeting, std::vector<transfer> calls, uint64_t number, uint64_t *pieces)
    : meeting_(std::move(meeting)), number_(number), pieces_(pieces)
{
    for (const transfer &call : calls) parts_.push_back({call, 0, false});
}

piece_label transfers::label(const transfer &call) const
{
    bool reduces = call.kind == transfer_kind::all_reduce || call.kind == transfer_kind::reduce_scatter ||
                   call.kind == transfer_kind::reduce;
    bool rooted = call.kind == transfer_kind::broadcast || call.kind == transfer_kind::reduce;
    bool paired = call.kind == transfer_kind::send || call.kind == transfer_kind::receive;
    return {paired ? 0 : number_, // sends are numbered by their sender, which need not be in step
            call.count,
            paired ? int32_t(transfer_kind::send) : int32_t(call.kind),
            int32_t(call.type),
            reduces ? int32_t(call.reduction) : 0,
            rooted ? call.root : 0};
}

void transfers::check(const transfer &call, const piece_label &theirs, int rank) const
{
    piece_label ours = label(call);
    if (memcmp(&ours, &theirs, sizeof ours) == 0) return;
    fatal(__FILE__, __LINE__,
          "operation %lu of a communicator: %s of %zu elements of type %d here (rank %d), %s of %lu of type %d on rank "
          "%d",
          static_cast<unsigned long>(number_), transfer_name(call.kind), call.count, int(call.type), meeting_->rank(),
          transfer_name(transfer_kind(theirs.kind)), static_cast<unsigned long>(theirs.count), theirs.type, rank);
}

/* Elements of the call's count that one piece covers. */
size_t transfers::piece_elements(const transfer &call) const
{
    size_t parts = call.kind == transfer_kind::reduce_scatter ? size_t(meeting_->ranks()) : 1;
    return piece_bytes / (element_bytes(call.type) * parts);
}

/* This rank's part of the piece that begins at element part.done. */
void transfers::fill_piece(const ongoing &part, size_t n, char *to) const
{
    const transfer &call = part.call;
    size_t size = element_bytes(call.type);
    const char *from = static_cast<const char *>(call.send) + part.done * size;
    if (call.kind == transfer_kind::broadcast && meeting_->rank() != call.root) return;
    if (call.kind != transfer_kind::reduce_scatter) {
        memcpy(to, from, n * size);
        return;
    }
    for (int r = 0; r < meeting_->ranks(); r++)
        memcpy(to + size_t(r) * n * size, from + size_t(r) * call.count * size, n * size);
}

/* What this rank receives of the pieces of all. */
void transfers::use_pieces(const ongoing &part, size_t n, const char *const *pieces) const
{
    const transfer &call = part.call;
    const int ranks = meeting_->ranks(), rank = meeting_->rank();
    size_t size = element_bytes(call.type);
    char *to = static_cast<char *>(call.receive) + part.done * size;
    const char *own[max_ranks];
    switch (call.kind) {
    case transfer_kind::all_gather:
        for (int r = 0; r < ranks; r++) memcpy(to + size_t(r) * call.count * size, pieces[r], n * size);
        break;
    case transfer_kind::broadcast:
        memcpy(to, pieces[call.root], n * size);
        break;
    case transfer_kind::reduce_scatter:
        for (int r = 0; r < ranks; r++) own[r] = pieces[r] + size_t(rank) * n * size;
        reduce(to, own, ranks, n, call.type, call.reduction);
        break;
    case transfer_kind::reduce:
        if (rank == call.root) reduce(to, pieces, ranks, n, call.type, call.reduction);
        break;
    default:
        reduce(to, pieces, ranks, n, call.type, call.reduction);
    }
}

progress transfers::step_collective(ongoing &part)
{
    size_t n = std::min(piece_elements(part.call), part.call.count - part.done);
    if (!part.posted) {
        fill_piece(part, n, meeting_->place(*pieces_));
        meeting_->post(*pieces_, label(part.call));
        part.posted = true;
        return progress::advanced;
    }
    const char *pieces[max_ranks];
    for (int r = 0; r < meeting_->ranks(); r++) {
        piece piece = meeting_->posted(r, *pieces_);
        if (!piece.data) return progress::blocked;
        check(part.call, *piece.label, r);
        pieces[r] = piece.data;
    }
    use_pieces(part, n, pieces);
    ++*pieces_;
    part.posted = false;
    part.done += n;
    return part.done == part.call.count ? progress::done : progress::advanced;
}

/* A send is done when its last piece has been taken: whoever sends to each other outside a group waits for ever. */
progress transfers::step_send(ongoing &part)
{
    const transfer &call = part.call;
    if (part.done == call.count) return meeting_->channel_empty(call.root) ? progress::done : progress::blocked;
    char *place = meeting_->channel_place(call.root);
    if (!place) return progress::blocked;
    size_t size = element_bytes(call.type), n = std::min(piece_bytes / size, call.count - part.done);
    memcpy(place, static_cast<const char *>(call.send) + part.done * size, n * size);
    meeting_->channel_post(call.root, label(call));
    part.done += n;
    return progress::advanced;
}

progress transfers::step_receive(ongoing &part)
{
    const transfer &call = part.call;
    piece piece = meeting_->channel_posted(call.root);
    if (!piece.data) return progress::blocked;
    check(call, *piece.label, call.root);
    size_t size = element_bytes(call.type), n = std::min(piece_bytes / size, call.count - part.done);
    memcpy(static_cast<char *>(call.receive) + part.done * size, piece.data, n * size);
    meeting_->channel_take(call.root);
    part.done += n;
    return part.done == call.count ? progress::done : progress::advanced;
}

progress transfers::step()
{
    progress outcome = progress::blocked;
    bool one_collective = false;
    for (size_t i = 0; i < parts_.size();) {
        transfer_kind kind = parts_[i].call.kind;
        progress step;
        if (kind == transfer_kind::send)
            step = step_send(parts_[i]);
        else if (kind == transfer_kind::receive)
            step = step_receive(parts_[i]);
        else if (one_collective)
            step = progress::blocked; // their order
        else
            one_collective = true, step = step_collective(parts_[i]);
        if (step == progress::done)
            parts_.erase(parts_.begin() + long(i));
        else
            i++;
        if (step != progress::blocked) outcome = progress::advanced;
    }
    return parts_.empty() ? progress::done : outcome;
}

void transfers::abandon()
{
    for (const ongoing &part : parts_)
        if (size_t bytes = receive_bytes(part.call, meeting_->rank(), meeting_->ranks()))
            memset(part.call.receive, 0xFF, bytes);
    parts_.clear();
}

} // namespace sim
