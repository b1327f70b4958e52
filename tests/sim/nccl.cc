/* NCCL: communicators, groups, and the calls that enqueue transfers.
 *
 * Operations of a communicator run in the order in which they were enqueued, on whatever streams. With `blocking = 0` a
 * call returns ncclInProgress, and what it asked for is enqueued only when ncclCommGetAsyncError has been polled until
 * it says success: work that the program puts behind it too early does not wait for it.
 */
#include "call.h"
#include "graph.h"
#include "memory.h"
#include "nccl_transfer.h"
#include "settings.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstring>
#include <map>
#include <thread>

using namespace sim;

namespace
{

struct communicator {
    std::shared_ptr<meeting> ranks;
    int device;
    bool blocking, joined, aborted, finalizing, finalized;
    ncclResult_t error; /* stays */
    uint64_t enqueued, finished, pieces;
    std::vector<std::pair<stream *, std::vector<transfer>>> deferred; /* until polled */
    int polls_left;                                                   /* that still say "in progress" */
};

struct group_call {
    std::shared_ptr<communicator> comm;
    stream *on;
    transfer call;
};

std::map<ncclComm_t, std::shared_ptr<communicator>> &communicators()
{
    static auto *const all = new std::map<ncclComm_t, std::shared_ptr<communicator>>;
    return *all;
}

thread_local int group_depth;
thread_local std::vector<group_call> group;

template <typename Body> ncclResult_t nccl(const char *name, Body body)
{
    std::lock_guard<std::mutex> guard(lock);
    note_call();
    if (is_forked()) return ncclUnhandledCudaError;
    trace(name, nullptr);
    if (int code = injected_failure(name)) return ncclResult_t(code);
    return body();
}

ncclResult_t refuse(ncclResult_t result, const char *why)
{
    return explain("nccl: %s", why), result;
}

std::shared_ptr<communicator> find(ncclComm_t handle)
{
    auto found = communicators().find(handle);
    return found == communicators().end() ? nullptr : found->second;
}

/* Let other threads and processes go on. */
void pause()
{
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    lock.lock();
}

/* --- progress without calls ----------------------------------------------------------------------------------------
 */

/* A device works while its host does something else, such as to wait for another rank by other means. */
class progress_thread
{
  public:
    progress_thread() : thread_([this] { run(); })
    {
    }

    void stop()
    {
        stopping_ = true;
        thread_.join();
    }

  private:
    void run()
    {
        while (!stopping_) {
            uint64_t before = calls_noted();
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
            if (calls_noted() != before) continue;
            std::lock_guard<std::mutex> guard(lock);
            if (!transfers_pending()) continue;
            device_access access;
            for (int step = 0; step < 64 && run_one(); step++) {
            }
        }
    }

    static bool transfers_pending()
    {
        for (const auto &entry : communicators())
            if (entry.second->finished < entry.second->enqueued) return true;
        return false;
    }

    std::atomic<bool> stopping_{false};
    std::thread thread_;
};

progress_thread *worker;

/* Before this code may be unloaded. */
__attribute__((destructor)) void stop_worker()
{
    if (worker && !is_forked()) worker->stop();
}

/* --- communicators ---------------------------------------------------------------------------------------------------
 */

/* Whether all have joined, and what came of it. */
void try_to_join(communicator &comm)
{
    if (comm.joined || comm.error || !comm.ranks->complete()) return;
    comm.joined = true;
    if (comm.ranks->shares_a_device())
        comm.error = refuse(ncclInvalidUsage, "two ranks of a communicator have the same device");
}

ncclResult_t open_communicator(ncclComm_t *handle, int ranks, const ncclUniqueId &id, int rank, bool blocking)
{
    *handle = nullptr;
    if (ranks < 1 || ranks > max_ranks || rank < 0 || rank >= ranks)
        return refuse(ncclInvalidArgument, "a rank out of range");
    auto comm = std::make_shared<communicator>();
    comm->ranks = std::make_shared<meeting>();
    comm->device = current_device();
    comm->blocking = blocking;
    if (!comm->ranks->join(std::string(id.internal, strnlen(id.internal, sizeof id.internal)), ranks, rank,
                           comm->device))
        return refuse(ncclInvalidArgument, "nobody to meet under this id as this rank");
    if (!worker) worker = new progress_thread();
    *handle = reinterpret_cast<ncclComm_t>(comm.get());
    communicators()[*handle] = comm;
    if (!blocking) return ncclInProgress;
    while (try_to_join(*comm), !comm->joined) pause();
    if (!comm->error) return ncclSuccess;
    communicators().erase(*handle);
    *handle = nullptr;
    return comm->error;
}

/* Whether the program may enqueue. */
ncclResult_t check_usable(const communicator &comm)
{
    if (comm.error) return comm.error;
    if (!comm.joined || !comm.deferred.empty())
        return refuse(ncclInvalidUsage, "a call is in progress: ncclCommGetAsyncError says when it is over");
    return comm.finalizing ? refuse(ncclInvalidUsage, "the communicator is finalized") : ncclSuccess;
}

/* One step of a group's transfers, or their end. */
progress run_transfers(communicator &comm, transfers &work)
{
    if (comm.aborted) {
        work.abandon();
    } else {
        progress outcome = work.step();
        if (outcome != progress::done) return outcome;
    }
    comm.finished++;
    return progress::done;
}

void enqueue_transfers(const std::shared_ptr<communicator> &comm, stream &stream, const std::vector<transfer> &calls)
{
    uint64_t number = comm->enqueued++;
    auto work = std::make_shared<transfers>(comm->ranks, calls, number + 1, &comm->pieces);
    enqueue(stream, {transfer_name(calls[0].kind), [comm, work] { return run_transfers(*comm, *work); },
                     [comm, number] { return comm->finished == number; }});
}

ncclResult_t check_transfer(const communicator &comm, const stream *stream, const transfer &call)
{
    if (ncclResult_t result = check_usable(comm)) return result;
    if (!stream || stream->device != comm.device) return refuse(ncclInvalidUsage, "a stream of another device");
    if (stream->capturing) return refuse(ncclInvalidUsage, "NCCL in a capture is not simulated");
    if (!element_bytes(call.type)) return refuse(ncclInvalidArgument, "a type that is not simulated");
    if (call.reduction < 0 || call.reduction >= ncclNumOps) return refuse(ncclInvalidArgument, "an unknown reduction");
    if (call.root < 0 || call.root >= comm.ranks->ranks()) return refuse(ncclInvalidArgument, "a rank out of range");
    size_t sent = send_bytes(call, comm.ranks->rank(), comm.ranks->ranks());
    size_t received = receive_bytes(call, comm.ranks->rank(), comm.ranks->ranks());
    bool there = (!sent || on_device(comm.device, call.send, sent, "nccl: send buffer")) &&
                 (!received || on_device(comm.device, call.receive, received, "nccl: receive buffer"));
    return there ? ncclSuccess : ncclInvalidArgument;
}

/* Enqueue what was asked for since the outermost ncclGroupStart: one operation per communicator and stream. */
ncclResult_t end_group()
{
    ncclResult_t result = ncclSuccess;
    std::vector<group_call> calls;
    calls.swap(group);
    while (!calls.empty()) {
        auto comm = calls[0].comm;
        stream *stream = calls[0].on;
        std::vector<transfer> together;
        auto same = [&](const group_call &call) { return call.comm == comm && call.on == stream; };
        for (const group_call &call : calls)
            if (same(call)) together.push_back(call.call);
        calls.erase(std::remove_if(calls.begin(), calls.end(), same), calls.end());
        if (comm->blocking) {
            enqueue_transfers(comm, *stream, together);
        } else {
            comm->deferred.emplace_back(stream, together);
            comm->polls_left = int(comm->enqueued % 3);
            result = ncclInProgress;
        }
    }
    return result;
}

ncclResult_t add_transfer(const transfer &call, ncclComm_t handle, cudaStream_t stream_handle)
{
    return nccl(transfer_name(call.kind), [=] {
        auto comm = find(handle);
        stream *stream = find_stream(stream_handle);
        if (!comm) return ncclInvalidArgument;
        if (ncclResult_t result = check_transfer(*comm, stream, call)) return result;
        if (call.count > 0) group.push_back({comm, stream, call});
        return group_depth > 0 ? ncclSuccess : end_group();
    });
}

/* What ncclCommGetAsyncError says; moves a communicator on that does not block. */
ncclResult_t poll(const std::shared_ptr<communicator> &comm)
{
    try_to_join(*comm);
    if (comm->error) return comm->error;
    if (!comm->finalized && !options().nccl_silent) {
        int dead = comm->ranks->dead_rank();
        if (dead >= 0) {
            explain("nccl: rank %d is gone", dead);
            return comm->error = ncclRemoteError;
        }
    }
    if (!comm->joined || comm->polls_left-- > 0) return ncclInProgress;
    comm->polls_left = 0;
    for (const auto &[stream, calls] : comm->deferred) enqueue_transfers(comm, *stream, calls);
    comm->deferred.clear();
    if (comm->finalizing && !comm->finalized) {
        if (comm->finished < comm->enqueued) {
            device_access access;
            run_one();
            return ncclInProgress;
        }
        comm->ranks->leave();
        comm->finalized = true;
    }
    return ncclSuccess;
}

} // namespace

ncclResult_t ncclGetVersion(int *version)
{
    return nccl(__func__, [=] { return *version = NCCL_VERSION_CODE, ncclSuccess; });
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    return nccl(__func__, [=] {
        std::string path = meeting::create();
        if (path.empty() || path.size() >= sizeof id->internal) return ncclSystemError;
        memset(id, 0, sizeof *id);
        memcpy(id->internal, path.data(), path.size());
        return ncclSuccess;
    });
}

ncclResult_t ncclCommInitRank(ncclComm_t *handle, int ranks, ncclUniqueId id, int rank)
{
    return nccl(__func__, [&] { return open_communicator(handle, ranks, id, rank, true); });
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *handle, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    return nccl(__func__, [&] {
        bool blocking = !config || config->blocking == NCCL_CONFIG_UNDEF_INT || config->blocking != 0;
        return open_communicator(handle, ranks, id, rank, blocking);
    });
}

ncclResult_t ncclCommCount(const ncclComm_t handle, int *count)
{
    return nccl(__func__, [=] {
        auto comm = find(handle);
        return comm ? (*count = comm->ranks->ranks(), ncclSuccess) : ncclInvalidArgument;
    });
}

ncclResult_t ncclCommUserRank(const ncclComm_t handle, int *rank)
{
    return nccl(__func__, [=] {
        auto comm = find(handle);
        return comm ? (*rank = comm->ranks->rank(), ncclSuccess) : ncclInvalidArgument;
    });
}

ncclResult_t ncclCommCuDevice(const ncclComm_t handle, int *device)
{
    return nccl(__func__, [=] {
        auto comm = find(handle);
        return comm ? (*device = comm->device, ncclSuccess) : ncclInvalidArgument;
    });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t *error)
{
    return nccl(__func__, [=] {
        auto comm = find(handle);
        if (!comm) return ncclInvalidArgument;
        *error = poll(comm);
        return ncclSuccess;
    });
}

ncclResult_t ncclCommAbort(ncclComm_t handle)
{
    return nccl(__func__, [=] {
        auto comm = find(handle);
        if (!comm) return ncclInvalidArgument;
        comm->aborted = true; // what is pending ends when it is run next
        comm->deferred.clear();
        communicators().erase(handle);
        return ncclSuccess;
    });
}

ncclResult_t ncclCommFinalize(ncclComm_t handle)
{
    return nccl(__func__, [=] {
        auto comm = find(handle);
        if (!comm) return ncclInvalidArgument;
        if (ncclResult_t result = check_usable(*comm)) return result;
        comm->finalizing = true;
        if (!comm->blocking) return ncclInProgress;
        run_until([comm] { return comm->finished == comm->enqueued; });
        return poll(comm);
    });
}

ncclResult_t ncclCommDestroy(ncclComm_t handle)
{
    return nccl(__func__, [=] {
        auto comm = find(handle);
        if (!comm) return ncclInvalidArgument;
        if (comm->deferred.size()) return refuse(ncclInvalidUsage, "a call is in progress");
        if (!comm->finalized && !comm->error && comm->joined) {
            run_until([comm] { return comm->finished == comm->enqueued; });
            comm->ranks->leave();
        }
        communicators().erase(handle);
        return ncclSuccess;
    });
}

ncclResult_t ncclGroupStart(void)
{
    return nccl(__func__, [] { return group_depth++, ncclSuccess; });
}

ncclResult_t ncclGroupEnd(void)
{
    return nccl(__func__, [] {
        if (group_depth == 0) return ncclInvalidUsage;
        return --group_depth > 0 ? ncclSuccess : end_group();
    });
}

ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t reduction,
                           ncclComm_t comm, cudaStream_t stream)
{
    return add_transfer({transfer_kind::all_reduce, send, receive, count, type, reduction, 0}, comm, stream);
}

ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t count, ncclDataType_t type,
                               ncclRedOp_t reduction, ncclComm_t comm, cudaStream_t stream)
{
    return add_transfer({transfer_kind::reduce_scatter, send, receive, count, type, reduction, 0}, comm, stream);
}

ncclResult_t ncclAllGather(const void *send, void *receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream)
{
    return add_transfer({transfer_kind::all_gather, send, receive, count, type, ncclSum, 0}, comm, stream);
}

ncclResult_t ncclBroadcast(const void *send, void *receive, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream)
{
    return add_transfer({transfer_kind::broadcast, send, receive, count, type, ncclSum, root}, comm, stream);
}

ncclResult_t ncclReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t reduction,
                        int root, ncclComm_t comm, cudaStream_t stream)
{
    return add_transfer({transfer_kind::reduce, send, receive, count, type, reduction, root}, comm, stream);
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return add_transfer({transfer_kind::send, send, nullptr, count, type, ncclSum, peer}, comm, stream);
}

ncclResult_t ncclRecv(void *receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
    return add_transfer({transfer_kind::receive, nullptr, receive, count, type, ncclSum, peer}, comm, stream);
}

const char *ncclGetErrorString(ncclResult_t result)
{
    switch (result) {
    case ncclSuccess:
        return "no error";
    case ncclUnhandledCudaError:
        return "unhandled cuda error";
    case ncclSystemError:
        return "unhandled system error";
    case ncclInternalError:
        return "internal error";
    case ncclInvalidArgument:
        return "invalid argument";
    case ncclInvalidUsage:
        return "invalid usage";
    case ncclRemoteError:
        return "remote process exited or there was a network error";
    case ncclInProgress:
        return "NCCL operation in progress";
    default:
        return "unknown result code";
    }
}

const char *ncclGetLastError(ncclComm_t)
{
    return "";
}
