/* Streams run late and in any permitted order: what is missing shows in some of 20 seeds, what is there never does. */
#include "check.h"

#include <cstdlib>
#include <sys/wait.h>
#include <unistd.h>

static const int seeds = 20;

__global__ void add(float *out, const float *in, float what)
{
    out[threadIdx.x] = in[threadIdx.x] + what;
}

static cudaStream_t new_stream(unsigned flags = cudaStreamNonBlocking)
{
    cudaStream_t stream;
    MUST(cudaStreamCreateWithFlags(&stream, flags));
    return stream;
}

static cudaEvent_t new_event()
{
    cudaEvent_t event;
    MUST(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return event;
}

/* 1 + 1 in one stream, + 2 in another that waits for the first, or does not. */
static int produce_and_consume(bool waits)
{
    const float ones[4] = {1, 1, 1, 1};
    float *a = device_array(4, ones), *b = device_array<float>(4), *c = device_array<float>(4), out[4];
    cudaStream_t producer = new_stream(), consumer = new_stream();
    cudaEvent_t produced = new_event();
    MUST(launch(add, 1, 4, 0, producer, b, a, 1));
    MUST(cudaEventRecord(produced, producer));
    if (waits) MUST(cudaStreamWaitEvent(consumer, produced, 0));
    MUST(launch(add, 1, 4, 0, consumer, c, b, 2));
    MUST(cudaDeviceSynchronize());
    read_array(out, c, 4);
    return out[0] == 4 && out[3] == 4 ? 0 : 1;
}

static void a_missing_wait_shows(void **)
{
    int without = wrong_seeds(seeds, [] { return produce_and_consume(false); });
    print_message("without the wait %d of %d seeds are wrong\n", without, seeds);
    assert_int_equal(wrong_seeds(seeds, [] { return produce_and_consume(true); }), 0);
    assert_true(without >= 5);
}

/* The first of two places that wait is taken out by SIM_DROP; the other stays. */
static int wait_twice()
{
    float zero[1] = {0}, *a = device_array(1, zero), *b = device_array(1, zero), out;
    cudaStream_t first = new_stream(), second = new_stream(), third = new_stream();
    cudaEvent_t event = new_event();
    MUST(launch(add, 1, 1, 0, first, a, a, 1));
    MUST(cudaEventRecord(event, first));
    MUST(cudaStreamWaitEvent(second, event, 0));
    MUST(launch(add, 1, 1, 0, second, b, a, 1));
    MUST(cudaEventRecord(event, second));
    MUST(cudaStreamWaitEvent(third, event, 0));
    MUST(launch(add, 1, 1, 0, third, a, b, 1));
    MUST(cudaDeviceSynchronize());
    read_array(&out, a, 1);
    return out == 3 ? 0 : 1;
}

static void each_wait_can_be_taken_out_by_its_place(void **)
{
    assert_int_equal(wrong_seeds(seeds, wait_twice), 0);
    for (const char *place : {"1", "2"})
        assert_true(wrong_seeds(seeds, wait_twice, {std::string("SIM_DROP=cudaStreamWaitEvent:") + place}) > 0);
    assert_int_equal(wrong_seeds(seeds, wait_twice, {"SIM_DROP=cudaStreamWaitEvent:3"}), 0);
}

/* The second recording of an event may be done before the first; a wait for the event is for the second. */
static int record_in_two_streams()
{
    const float zero = 0;
    float *a = device_array(1, &zero), *b = device_array<float>(1), *c = device_array<float>(1), out;
    cudaStream_t first = new_stream(), second = new_stream(), third = new_stream();
    cudaEvent_t event = new_event();
    for (int i = 0; i < 5; i++) MUST(launch(add, 1, 1, 0, first, a, a, 1));
    MUST(cudaEventRecord(event, first));
    MUST(cudaMemsetAsync(b, 0, sizeof *b, second));
    MUST(cudaEventRecord(event, second));
    MUST(cudaEventSynchronize(event));
    MUST(cudaStreamSynchronize(first));
    MUST(cudaStreamWaitEvent(third, event, 0));
    MUST(launch(add, 1, 1, 0, third, c, b, 1));
    MUST(cudaStreamSynchronize(third));
    read_array(&out, c, 1);
    return out == 1 ? 0 : 1;
}

static void an_event_is_its_last_recording(void **)
{
    assert_int_equal(wrong_seeds(seeds, record_in_two_streams), 0);
}

/* The host writes into the source of a copy that may still be under way. */
static int overwrite_the_source(bool pinned, bool waits)
{
    float *source, out, *to = device_array<float>(1);
    if (pinned)
        MUST(cudaMallocHost(reinterpret_cast<void **>(&source), sizeof *source));
    else
        source = new float;
    cudaStream_t stream = new_stream();
    cudaEvent_t copied = new_event();
    *source = 1;
    MUST(cudaMemcpyAsync(to, source, sizeof *source, cudaMemcpyHostToDevice, stream));
    MUST(cudaEventRecord(copied, stream));
    if (waits) MUST(cudaEventSynchronize(copied));
    *source = 2;
    MUST(cudaStreamSynchronize(stream));
    read_array(&out, to, 1);
    return out == 1 ? 0 : 1;
}

static void a_pinned_source_must_not_be_overwritten_before_it_is_copied(void **)
{
    assert_int_equal(wrong_seeds(seeds, [] { return overwrite_the_source(true, false); }),
                     seeds - 1); // seed 0 is eager
    assert_int_equal(wrong_seeds(seeds, [] { return overwrite_the_source(true, true); }), 0);
    assert_int_equal(wrong_seeds(seeds, [] { return overwrite_the_source(false, false); }), 0);
}

/* A kernel of the default stream between two others: blocking streams keep that order, others do not. */
static int default_stream_between(unsigned flags)
{
    float zero[1] = {0}, *a = device_array(1, zero), *b = device_array(1, zero), *c = device_array<float>(1), out;
    cudaStream_t first = new_stream(flags), second = new_stream(flags);
    MUST(launch(add, 1, 1, 0, first, a, a, 1));
    MUST(launch(add, 1, 1, 0, nullptr, b, a, 1));
    MUST(launch(add, 1, 1, 0, second, c, b, 1));
    MUST(cudaDeviceSynchronize());
    read_array(&out, c, 1);
    return out == 3 ? 0 : 1;
}

static void the_default_stream_orders_blocking_streams_only(void **)
{
    assert_int_equal(wrong_seeds(seeds, [] { return default_stream_between(cudaStreamDefault); }), 0);
    assert_true(wrong_seeds(seeds, [] { return default_stream_between(cudaStreamNonBlocking); }) >= 5);
}

/* Results arrive in pinned memory only when somebody has waited. */
static int read_back(bool waits)
{
    float two[1] = {2}, *from = device_array(1, two), *to;
    MUST(cudaMallocHost(reinterpret_cast<void **>(&to), sizeof *to));
    *to = 0;
    cudaStream_t stream = new_stream();
    MUST(cudaMemcpyAsync(to, from, sizeof *to, cudaMemcpyDeviceToHost, stream));
    if (waits) MUST(cudaStreamSynchronize(stream));
    return *to == 2 ? 0 : 1;
}

static void a_result_is_there_after_a_wait_only(void **)
{
    assert_int_equal(wrong_seeds(seeds, [] { return read_back(false); }), seeds - 1);
    assert_int_equal(wrong_seeds(seeds, [] { return read_back(true); }), 0);
}

static int poll_until_done()
{
    float zero[1] = {0}, *a = device_array(1, zero);
    cudaStream_t stream = new_stream();
    cudaEvent_t event = new_event();
    for (int i = 0; i < 5; i++) MUST(launch(add, 1, 1, 0, stream, a, a, 1));
    MUST(cudaEventRecord(event, stream));
    int polls = 0;
    while (cudaEventQuery(event) == cudaErrorNotReady) polls++;
    if (cudaGetLastError() != cudaSuccess || cudaStreamQuery(stream) != cudaSuccess) return 1;
    return polls >= 3 ? 0 : 1;
}

static void polling_ends(void **)
{
    assert_int_equal(in_child({"SIM_SEED=5"}, poll_until_done).exit, 0);
}

/* Arguments are those of the launch, whatever becomes of the variables. */
static int arguments_are_copied()
{
    float zero[1] = {0}, *a = device_array(1, zero), out;
    for (float what : {1.0f, 2.0f, 4.0f}) MUST(launch(add, 1, 1, 0, nullptr, a, a, what));
    read_array(&out, a, 1);
    return out == 7 ? 0 : 1;
}

static void arguments_are_those_of_the_launch(void **)
{
    assert_int_equal(wrong_seeds(seeds, arguments_are_copied), 0);
}

/* --- errors ------------------------------------------------------------------------------------------------------- */

__global__ void never_noted()
{
}

static void launches_that_cuda_refuses_are_refused(void **)
{
    assert_int_equal(in_child({},
                              [] {
                                  return int(cudaLaunchKernel(reinterpret_cast<const void *>(never_noted), 1, 1,
                                                              nullptr, 0, nullptr));
                              })
                         .exit,
                     cudaErrorInvalidDeviceFunction);
    assert_int_equal(in_child({}, [] { return int(launch(never_noted, 1, 1025, 0, nullptr)); }).exit,
                     cudaErrorInvalidConfiguration);
    assert_int_equal(in_child({}, [] { return int(launch(never_noted, 0, 1, 0, nullptr)); }).exit,
                     cudaErrorInvalidConfiguration);
    assert_int_equal(in_child({}, [] { return int(launch(never_noted, dim3(1, 65536), 1, 0, nullptr)); }).exit,
                     cudaErrorInvalidConfiguration);
    assert_int_equal(in_child({}, [] { return int(launch(never_noted, 4, 1024, 0, nullptr)); }).exit, cudaSuccess);
}

static int second_synchronisation()
{
    MUST(cudaDeviceSynchronize());
    cudaError_t failed = cudaDeviceSynchronize();
    void *memory;
    cudaError_t after = cudaMalloc(&memory, 1);
    return failed == after ? int(failed) : 99;
}

static void a_chosen_call_fails_and_a_lost_device_stays_lost(void **)
{
    assert_int_equal(in_child({"SIM_FAIL=cudaDeviceSynchronize:2:77"}, second_synchronisation).exit,
                     99); // the call after it works: not this code
    assert_int_equal(in_child({"SIM_FAIL=cudaDeviceSynchronize:2:700"}, second_synchronisation).exit,
                     cudaErrorIllegalAddress & 0xff);
    assert_int_equal(in_child({"SIM_FAIL=cudaDeviceSynchronize:3:700"}, second_synchronisation).exit, 0);
}

static int use_in_a_forked_child()
{
    MUST(cudaFree(nullptr));
    pid_t child = fork();
    if (child == 0) _exit(int(cudaFree(nullptr)));
    int status;
    waitpid(child, &status, 0);
    return WEXITSTATUS(status);
}

static void a_forked_child_cannot_use_it(void **)
{
    assert_int_equal(in_child({}, use_in_a_forked_child).exit, cudaErrorInitializationError);
}

static int devices_and_streams()
{
    int count;
    MUST(cudaGetDeviceCount(&count));
    cudaStream_t stream = new_stream();
    MUST(cudaSetDevice(1));
    cudaError_t foreign = launch(never_noted, 1, 1, 0, stream);
    return count == 2 && foreign == cudaErrorInvalidResourceHandle && cudaSetDevice(2) == cudaErrorInvalidDevice ? 0
                                                                                                                 : 1;
}

static void there_are_as_many_devices_as_asked_for(void **)
{
    assert_int_equal(in_child({"SIM_DEVICES=2"}, devices_and_streams).exit, 0);
    assert_int_equal(in_child({"SIM_DEVICES=0"},
                              [] {
                                  int count;
                                  return int(cudaGetDeviceCount(&count));
                              })
                         .exit,
                     cudaErrorNoDevice);
}

/* A trace says where the host waited. */
static void a_trace_counts_what_waits(void **)
{
    char path[] = "/tmp/sim_trace_XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    assert_int_equal(in_child({std::string("SIM_TRACE=") + path},
                              [path] { // the child's own name is in the file's
                                  float host = 1, *a = device_array<float>(1);
                                  cudaStream_t stream = new_stream();
                                  MUST(launch(add, 1, 1, 0, stream, a, a, 1));
                                  MUST(cudaMemcpyAsync(a, &host, sizeof host, cudaMemcpyHostToDevice, stream));
                                  MUST(cudaStreamSynchronize(stream));
                                  std::ifstream trace(std::string(path) + "." + std::to_string(getpid()));
                                  int waits = 0, launches = 0;
                                  for (std::string line; std::getline(trace, line);) {
                                      waits += line.find("host-sync") != std::string::npos;
                                      launches += line == "cudaLaunchKernel";
                                  }
                                  unlink((std::string(path) + "." + std::to_string(getpid())).c_str());
                                  return waits * 10 + launches;
                              })
                         .exit,
                     21);
    unlink(path);
}

int main()
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_missing_wait_shows),
        cmocka_unit_test(each_wait_can_be_taken_out_by_its_place),
        cmocka_unit_test(an_event_is_its_last_recording),
        cmocka_unit_test(a_pinned_source_must_not_be_overwritten_before_it_is_copied),
        cmocka_unit_test(the_default_stream_orders_blocking_streams_only),
        cmocka_unit_test(a_result_is_there_after_a_wait_only),
        cmocka_unit_test(polling_ends),
        cmocka_unit_test(arguments_are_those_of_the_launch),
        cmocka_unit_test(launches_that_cuda_refuses_are_refused),
        cmocka_unit_test(a_chosen_call_fails_and_a_lost_device_stays_lost),
        cmocka_unit_test(a_forked_child_cannot_use_it),
        cmocka_unit_test(there_are_as_many_devices_as_asked_for),
        cmocka_unit_test(a_trace_counts_what_waits),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
