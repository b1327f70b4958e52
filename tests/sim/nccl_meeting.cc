#include "nccl_meeting.h"

#include "settings.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <functional>
#include <sys/mman.h>
#include <unistd.h>

namespace sim
{

namespace
{

enum member_state { ABSENT, JOINED, LEFT };

struct member {
    std::atomic<int> state;
    int device;
    uint64_t host;
};

struct mailbox {
    std::atomic<uint64_t> posted; /* its piece's number + 1 */
    piece_label label;
    char data[piece_bytes];
};

struct channel {
    std::atomic<uint64_t> posted, taken; /* pieces */
    piece_label label;
    char data[piece_bytes];
};

uint64_t host_number()
{
    char name[256] = "";
    gethostname(name, sizeof name - 1);
    return std::hash<std::string>()(name);
}

} // namespace

struct meeting::shared {
    std::atomic<int> ranks;
    member members[max_ranks];
    mailbox mailboxes[max_ranks][2];
    channel channels[max_ranks][max_ranks]; // from, to; pages that nobody touches take no memory
};

std::string meeting::create()
{
    for (const char *directory : {"/dev/shm", "/tmp"}) {
        std::string path = std::string(directory) + "/gaccd-sim-nccl-XXXXXX";
        int file = mkostemp(path.data(), O_CLOEXEC);
        if (file < 0) continue;
        close(file);
        return path;
    }
    return "";
}

meeting::~meeting()
{
    if (shared_) munmap(shared_, sizeof *shared_);
    if (file_ >= 0) close(file_);
    if (!path_.empty()) unlink(path_.c_str());
}

bool meeting::join(const std::string &path, int ranks, int rank, int device)
{
    static_assert(std::atomic<uint64_t>::is_always_lock_free, "between processes");
    ranks_ = ranks;
    rank_ = rank;
    file_ = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (file_ < 0 || ftruncate(file_, sizeof *shared_) != 0) return false;
    void *memory = mmap(nullptr, sizeof *shared_, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    if (memory == MAP_FAILED) return false;
    shared_ = static_cast<shared *>(memory);
    path_ = path;
    int nobody = 0;
    if (!shared_->ranks.compare_exchange_strong(nobody, ranks) && nobody != ranks) return false;
    struct flock own = {};
    own.l_type = F_WRLCK;
    own.l_start = rank;
    own.l_len = 1;
    if (fcntl(file_, F_OFD_SETLK, &own) != 0) return false;
    member &self = shared_->members[rank];
    if (self.state.load() != ABSENT) return false;
    self.device = device;
    self.host = host_number();
    self.state.store(JOINED);
    return true;
}

bool meeting::complete()
{
    for (int r = 0; r < ranks_; r++)
        if (shared_->members[r].state.load() == ABSENT) return false;
    if (!path_.empty()) unlink(path_.c_str());
    path_.clear();
    return true;
}

bool meeting::shares_a_device() const
{
    for (int a = 0; a < ranks_; a++)
        for (int b = 0; b < a; b++)
            if (shared_->members[a].device == shared_->members[b].device &&
                shared_->members[a].host == shared_->members[b].host)
                return true;
    return false;
}

int meeting::dead_rank() const
{
    for (int r = 0; r < ranks_; r++) {
        if (r == rank_ || shared_->members[r].state.load() != JOINED) continue;
        struct flock held = {};
        held.l_type = F_WRLCK;
        held.l_start = r;
        held.l_len = 1;
        if (fcntl(file_, F_OFD_GETLK, &held) == 0 && held.l_type == F_UNLCK &&
            shared_->members[r].state.load() == JOINED) // it may have left in between
            return r;
    }
    return -1;
}

void meeting::leave()
{
    shared_->members[rank_].state.store(LEFT);
}

char *meeting::place(uint64_t number)
{
    return shared_->mailboxes[rank_][number % 2].data;
}

void meeting::post(uint64_t number, const piece_label &label)
{
    mailbox &own = shared_->mailboxes[rank_][number % 2];
    own.label = label;
    own.posted.store(number + 1);
}

piece meeting::posted(int rank, uint64_t number) const
{
    const mailbox &other = shared_->mailboxes[rank][number % 2];
    if (other.posted.load() != number + 1) return {nullptr, nullptr};
    return {&other.label, other.data};
}

char *meeting::channel_place(int peer)
{
    return channel_empty(peer) ? shared_->channels[rank_][peer].data : nullptr;
}

void meeting::channel_post(int peer, const piece_label &label)
{
    channel &to = shared_->channels[rank_][peer];
    to.label = label;
    to.posted.fetch_add(1);
}

bool meeting::channel_empty(int peer) const
{
    const channel &to = shared_->channels[rank_][peer];
    return to.posted.load() == to.taken.load();
}

piece meeting::channel_posted(int peer) const
{
    const channel &from = shared_->channels[peer][rank_];
    if (from.posted.load() == from.taken.load()) return {nullptr, nullptr};
    return {&from.label, from.data};
}

void meeting::channel_take(int peer)
{
    shared_->channels[peer][rank_].taken.fetch_add(1);
}

} // namespace sim
