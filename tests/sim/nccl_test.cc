/* Communicators of several processes: right in every order, a mistake or a death of one of them shows on the others. */
#include "check.h"
#include "element.h"

#include <atomic>
#include <csignal>
#include <nccl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

static const int seeds = 20;

/* --- several ranks
 * ----------------------------------------------------------------------------------------------------- */

/* What the processes of a case share besides communicators. */
struct common {
    ncclUniqueId ids[2];
    std::atomic<int> ids_made, arrived;
};

struct rank_of {
    int rank, ranks;
    common *shared;

    /* The `which`-th communicator of all ranks. */
    ncclComm_t communicator(int which = 0) const
    {
        ncclComm_t comm;
        MUST(ncclCommInitRank(&comm, ranks, id(which), rank));
        return comm;
    }

    ncclUniqueId id(int which) const
    {
        if (rank == 0) {
            MUST(ncclGetUniqueId(&shared->ids[which]));
            shared->ids_made = which + 1;
        }
        while (shared->ids_made <= which) usleep(100);
        return shared->ids[which];
    }

    /* Wait for all ranks without a call to CUDA. */
    void barrier(int which = 1) const
    {
        shared->arrived++;
        while (shared->arrived < ranks * which) usleep(100);
    }
};

static std::vector<outcome> run_ranks(int ranks, std::vector<std::string> settings, int (*body)(const rank_of &))
{
    void *memory = mmap(nullptr, sizeof(common), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(memory, MAP_FAILED);
    auto *shared = new (memory) common{};
    settings.push_back("SIM_DEVICES=" + std::to_string(ranks));
    std::vector<child> children;
    for (int rank = 0; rank < ranks; rank++)
        children.push_back(start_child(settings, [=] {
            MUST(cudaSetDevice(rank));
            return body({rank, ranks, shared});
        }));
    std::vector<outcome> outcomes;
    for (child &child : children) outcomes.push_back(end_of(child));
    munmap(memory, sizeof(common));
    return outcomes;
}

/* In how many seeds a rank does not return 0. */
static int wrong_among(int ranks, int (*body)(const rank_of &), int among = seeds)
{
    int wrong = 0;
    for (int seed = 0; seed < among; seed++) {
        bool right = true;
        for (const outcome &outcome : run_ranks(ranks, {"SIM_SEED=" + std::to_string(seed)}, body)) {
            right = right && outcome.exit == 0;
            if (outcome.exit != 0 && outcome.exit != 1)
                fprintf(stderr, "seed %d: exit %d signal %d: %s", seed, outcome.exit, outcome.signal,
                        outcome.errors.c_str());
        }
        wrong += !right;
    }
    return wrong;
}

static cudaStream_t new_stream()
{
    cudaStream_t stream;
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

static cudaEvent_t new_event()
{
    cudaEvent_t event;
    MUST(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return event;
}

/* --- what they work out
 * ------------------------------------------------------------------------------------------------- */

/* Of several pieces. */
static const size_t long_count = 150000;

template <typename T> static T number(int rank, size_t i)
{
    return sim::narrowed<T>(float(rank + 1) + float(i % 7));
}

template <typename T> static int check_type(const rank_of &self, ncclComm_t comm, ncclDataType_t type, size_t count)
{
    size_t all = count * size_t(self.ranks);
    std::vector<T> in(all);
    for (size_t i = 0; i < all; i++) in[i] = number<T>(self.rank, i);
    T *d_in = device_array(all, in.data()), *sum = device_array<T>(all), *part = device_array<T>(count),
      *gathered = device_array<T>(all), *copied = device_array<T>(all), *high = device_array<T>(all);
    cudaStream_t reducing = new_stream(), gathering = new_stream();
    cudaEvent_t reduced = new_event();
    MUST(ncclAllReduce(d_in, sum, all, type, ncclSum, comm, reducing));
    MUST(ncclReduceScatter(d_in, part, count, type, ncclSum, comm, reducing));
    MUST(cudaEventRecord(reduced, reducing));
    MUST(cudaStreamWaitEvent(gathering, reduced, 0));
    MUST(ncclAllGather(part, gathered, count, type, comm, gathering));
    MUST(ncclBroadcast(d_in, copied, all, type, self.ranks - 1, comm, gathering));
    MUST(ncclReduce(d_in, high, all, type, ncclMax, 0, comm, reducing));
    MUST(cudaDeviceSynchronize());
    std::vector<T> sums(all), gathers(all), copies(all), highs(all);
    read_array(sums.data(), sum, all);
    read_array(gathers.data(), gathered, all);
    read_array(copies.data(), copied, all);
    read_array(highs.data(), high, all);
    for (size_t i = 0; i < all; i++) {
        double wanted = 0;
        for (int r = 0; r < self.ranks; r++) wanted += double(sim::widened(number<T>(r, i)));
        if (double(sim::widened(sums[i])) != wanted || double(sim::widened(gathers[i])) != wanted) return 1;
        if (double(sim::widened(copies[i])) != double(sim::widened(number<T>(self.ranks - 1, i)))) return 1;
        if (self.rank == 0 && double(sim::widened(highs[i])) != double(sim::widened(number<T>(self.ranks - 1, i))))
            return 1;
    }
    return 0;
}

static int check_collectives(const rank_of &self)
{
    ncclComm_t comm = self.communicator();
    int wrong = check_type<float>(self, comm, ncclFloat32, 5);
    wrong |= check_type<double>(self, comm, ncclFloat64, 5);
    wrong |= check_type<__half>(self, comm, ncclFloat16, 5);
    wrong |= check_type<__nv_bfloat16>(self, comm, ncclBfloat16, 5);
    MUST(ncclCommFinalize(comm));
    MUST(ncclCommDestroy(comm));
    return wrong;
}

static int check_long_collectives(const rank_of &self)
{
    ncclComm_t comm = self.communicator();
    int wrong = check_type<float>(self, comm, ncclFloat32, long_count);
    MUST(ncclCommDestroy(comm));
    return wrong;
}

static void collectives_are_right_on_two_and_four_ranks(void **)
{
    assert_int_equal(wrong_among(2, check_collectives), 0);
    assert_int_equal(wrong_among(4, check_collectives), 0);
    assert_int_equal(wrong_among(4, check_long_collectives, 3), 0);
    assert_int_equal(wrong_among(1, check_collectives, 3), 0);
}

/* In place, as the documentation has it: the own part of the larger buffer. */
static int check_in_place(const rank_of &self)
{
    ncclComm_t comm = self.communicator();
    const size_t count = long_count;
    std::vector<float> values(count * size_t(self.ranks));
    for (size_t i = 0; i < values.size(); i++) values[i] = float(self.rank + 1) * float(i % 11);
    float *all = device_array(values.size(), values.data()), *own = all + size_t(self.rank) * count;
    MUST(ncclReduceScatter(all, own, count, ncclFloat32, ncclAvg, comm, nullptr));
    MUST(ncclAllGather(own, all, count, ncclFloat32, comm, nullptr));
    read_array(values.data(), all, values.size());
    for (size_t i = 0; i < values.size(); i++)
        if (values[i] != float(i % 11) * float(self.ranks + 1) / 2) return 1;
    MUST(ncclCommDestroy(comm));
    return 0;
}

static void collectives_work_in_place(void **)
{
    assert_int_equal(wrong_among(2, check_in_place, 4), 0);
}

/* Every rank sends every rank its own number, more than one piece of it. */
static int check_all_to_all(const rank_of &self)
{
    ncclComm_t comm = self.communicator();
    const size_t count = long_count, all = count * size_t(self.ranks);
    std::vector<float> values(all, float(self.rank));
    float *out = device_array(all, values.data()), *in = device_array<float>(all);
    MUST(ncclGroupStart());
    for (int r = 0; r < self.ranks; r++) {
        MUST(ncclSend(out + size_t(r) * count, count, ncclFloat32, r, comm, nullptr));
        MUST(ncclRecv(in + size_t(r) * count, count, ncclFloat32, r, comm, nullptr));
    }
    MUST(ncclGroupEnd());
    read_array(values.data(), in, all);
    for (size_t i = 0; i < all; i++)
        if (values[i] != float(i / count)) return 1;
    MUST(ncclCommDestroy(comm));
    return 0;
}

static void grouped_sends_and_receives_go_to_all(void **)
{
    assert_int_equal(wrong_among(2, check_all_to_all, 5), 0);
    assert_int_equal(wrong_among(4, check_all_to_all, 5), 0);
}

/* --- order
 * ------------------------------------------------------------------------------------------------------------ */

__global__ void set(float *to, float value)
{
    *to = value;
}

template <bool WAITS> static int reduce_what_is_computed(const rank_of &self)
{
    ncclComm_t comm = self.communicator();
    float *x = device_array<float>(1), *sum = device_array<float>(1), out;
    cudaStream_t computing = new_stream(), reducing = new_stream();
    cudaEvent_t computed = new_event();
    MUST(launch(set, 1, 1, 0, computing, x, float(self.rank + 1)));
    MUST(cudaEventRecord(computed, computing));
    if (WAITS) MUST(cudaStreamWaitEvent(reducing, computed, 0));
    MUST(ncclAllReduce(x, sum, 1, ncclFloat32, ncclSum, comm, reducing));
    MUST(cudaDeviceSynchronize());
    read_array(&out, sum, 1);
    MUST(ncclCommDestroy(comm));
    return out == float(self.ranks * (self.ranks + 1)) / 2 ? 0 : 1;
}

static void a_reduction_that_does_not_wait_for_its_operand_shows(void **)
{
    assert_int_equal(wrong_among(2, reduce_what_is_computed<true>), 0);
    int wrong = wrong_among(2, reduce_what_is_computed<false>);
    print_message("without the wait %d of %d seeds are wrong\n", wrong, seeds);
    assert_true(wrong >= 5);
}

/* Odd ranks wait for the second first. */
static int two_communicators(const rank_of &self)
{
    ncclComm_t comms[2] = {self.communicator(0), self.communicator(1)};
    cudaStream_t streams[2] = {new_stream(), new_stream()};
    const float one = 1;
    float *x = device_array(1, &one), *sums = device_array<float>(2), out[2];
    for (int i = 0; i < 2; i++) MUST(ncclAllReduce(x, sums + i, 1, ncclFloat32, ncclSum, comms[i], streams[i]));
    for (int i = 0; i < 2; i++) MUST(cudaStreamSynchronize(streams[i ^ (self.rank % 2)]));
    read_array(out, sums, 2);
    for (ncclComm_t comm : comms) MUST(ncclCommDestroy(comm));
    return out[0] == float(self.ranks) && out[1] == float(self.ranks) ? 0 : 1;
}

static void two_communicators_do_not_wait_for_each_other(void **)
{
    assert_int_equal(wrong_among(4, two_communicators, 10), 0);
}

/* Rank 0's part must run while rank 0 waits for something that is not CUDA's. */
static int wait_elsewhere(const rank_of &self)
{
    ncclComm_t comm = self.communicator();
    const float one = 1;
    float *x = device_array(1, &one);
    MUST(ncclAllReduce(x, x, 1, ncclFloat32, ncclSum, comm, nullptr));
    if (self.rank != 0) MUST(cudaDeviceSynchronize());
    self.barrier();
    MUST(cudaDeviceSynchronize());
    MUST(ncclCommDestroy(comm));
    return 0;
}

static void a_device_works_while_its_host_waits_elsewhere(void **)
{
    assert_int_equal(wrong_among(2, wait_elsewhere, 5), 0);
}

/* --- without blocking
 * ------------------------------------------------------------------------------------------------- */

static ncclResult_t poll(ncclComm_t comm)
{
    ncclResult_t result;
    do MUST(ncclCommGetAsyncError(comm, &result));
    while (result == ncclInProgress);
    return result;
}

static ncclComm_t open_without_blocking(const rank_of &self)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t comm;
    if (ncclCommInitRankConfig(&comm, self.ranks, self.id(0), self.rank, &config) != ncclInProgress) _exit(3);
    return comm;
}

template <bool POLLS> static int enqueue_without_blocking(const rank_of &self)
{
    ncclComm_t comm = open_without_blocking(self);
    if (poll(comm) != ncclSuccess) return 3;
    const float one = 1;
    float *x = device_array(1, &one), *sum = device_array<float>(1), *copy = device_array<float>(1), out;
    cudaStream_t stream = new_stream();
    if (ncclAllReduce(x, sum, 1, ncclFloat32, ncclSum, comm, stream) != ncclInProgress) return 3;
    if (POLLS && poll(comm) != ncclSuccess) return 3;
    MUST(cudaMemcpyAsync(copy, sum, sizeof *copy, cudaMemcpyDeviceToDevice, stream));
    if (!POLLS && poll(comm) != ncclSuccess) return 3;
    MUST(cudaDeviceSynchronize());
    read_array(&out, copy, 1);
    if (ncclCommFinalize(comm) != ncclInProgress || poll(comm) != ncclSuccess) return 3;
    MUST(ncclCommDestroy(comm));
    return out == float(self.ranks) ? 0 : 1;
}

static void what_was_asked_for_without_blocking_is_there_once_polled(void **)
{
    assert_int_equal(wrong_among(2, enqueue_without_blocking<true>), 0);
    assert_int_equal(wrong_among(2, enqueue_without_blocking<false>, 5), 5);
}

/* --- mistakes and deaths
 * ---------------------------------------------------------------------------------------------- */

static int different_counts(const rank_of &self)
{
    ncclComm_t comm = self.communicator();
    float *x = device_array<float>(4);
    MUST(ncclAllReduce(x, x, 4, ncclFloat32, ncclSum, comm, nullptr));
    MUST(ncclAllReduce(x, x, self.rank ? 3 : 4, ncclFloat32, ncclSum, comm, nullptr));
    MUST(cudaDeviceSynchronize());
    return 0;
}

static void calls_that_differ_between_ranks_are_told(void **)
{
    bool told = false;
    for (const outcome &outcome : run_ranks(2, {"SIM_STALL=2"}, different_counts)) {
        assert_int_equal(outcome.signal, SIGABRT);
        told = told || outcome.says("operation 2 of a communicator");
    }
    assert_true(told);
}

static int send_before_receiving(const rank_of &self)
{
    ncclComm_t comm = self.communicator();
    float *x = device_array<float>(2);
    MUST(ncclSend(x, 1, ncclFloat32, 1 - self.rank, comm, nullptr));
    MUST(ncclRecv(x + 1, 1, ncclFloat32, 1 - self.rank, comm, nullptr));
    MUST(cudaDeviceSynchronize());
    return 0;
}

static void sends_to_each_other_outside_a_group_hang(void **)
{
    for (const outcome &outcome : run_ranks(2, {"SIM_STALL=1"}, send_before_receiving)) {
        assert_int_equal(outcome.signal, SIGABRT);
        assert_true(outcome.says("other processes do not come"));
    }
}

static int same_device(const rank_of &self)
{
    MUST(cudaSetDevice(0));
    ncclComm_t comm;
    return int(ncclCommInitRank(&comm, self.ranks, self.id(0), self.rank));
}

static void two_ranks_on_one_device_are_refused(void **)
{
    for (const outcome &outcome : run_ranks(2, {}, same_device)) assert_int_equal(outcome.exit, ncclInvalidUsage);
}

/* The last rank dies; the others watch from a second thread, abort, and find their streams empty and their results
 * void. */
static int survive(const rank_of &self)
{
    ncclComm_t comm = self.communicator();
    const float one = 1;
    float *x = device_array(1, &one), *sum = device_array(1, &one), out;
    self.barrier();
    if (self.rank == self.ranks - 1) raise(SIGKILL);
    MUST(ncclAllReduce(x, sum, 1, ncclFloat32, ncclSum, comm, nullptr));
    ncclResult_t seen = ncclSuccess;
    std::thread watchdog([&] {
        for (int i = 0; i < 500 && seen == ncclSuccess; i++) {
            MUST(ncclCommGetAsyncError(comm, &seen));
            usleep(1000);
        }
        MUST(ncclCommAbort(comm));
    });
    cudaError_t waited = cudaStreamSynchronize(nullptr);
    watchdog.join();
    read_array(&out, sum, 1);
    if (waited != cudaSuccess || !std::isnan(out)) return 1;
    return seen == ncclRemoteError ? 0 : 10 + int(seen);
}

static void the_death_of_a_rank_is_noticed_and_survived(void **)
{
    for (bool silent : {false, true}) {
        std::vector<outcome> outcomes = run_ranks(3, {silent ? "SIM_NCCL_SILENT=1" : "SIM_NCCL_SILENT=0"}, survive);
        for (int r = 0; r < 2; r++) assert_int_equal(outcomes[size_t(r)].exit, silent ? 10 + ncclSuccess : 0);
        assert_int_equal(outcomes[2].signal, SIGKILL);
    }
}

int main()
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_are_right_on_two_and_four_ranks),
        cmocka_unit_test(collectives_work_in_place),
        cmocka_unit_test(grouped_sends_and_receives_go_to_all),
        cmocka_unit_test(a_reduction_that_does_not_wait_for_its_operand_shows),
        cmocka_unit_test(two_communicators_do_not_wait_for_each_other),
        cmocka_unit_test(a_device_works_while_its_host_waits_elsewhere),
        cmocka_unit_test(what_was_asked_for_without_blocking_is_there_once_polled),
        cmocka_unit_test(calls_that_differ_between_ranks_are_told),
        cmocka_unit_test(sends_to_each_other_outside_a_group_hang),
        cmocka_unit_test(two_ranks_on_one_device_are_refused),
        cmocka_unit_test(the_death_of_a_rank_is_noticed_and_survived),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
