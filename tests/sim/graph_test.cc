/* Stream capture and graphs. */
#include "check.h"

static const int seeds = 20;

__global__ void add(float *out, const float *in, float what)
{
    out[threadIdx.x] = in[threadIdx.x] + what;
}

struct two_streams {
    cudaStream_t origin, other;
    cudaEvent_t forked, joined;
    two_streams()
    {
        MUST(cudaStreamCreateWithFlags(&origin, cudaStreamNonBlocking));
        MUST(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
        MUST(cudaEventCreateWithFlags(&forked, cudaEventDisableTiming));
        MUST(cudaEventCreateWithFlags(&joined, cudaEventDisableTiming));
    }
};

enum edges { ALL, NO_JOIN };

/* b = a + 1 here, c = b + 2 in another stream; then, joined or not, a = c. */
static cudaError_t capture(const two_streams &s, float *a, float *b, float *c, edges edges, cudaGraph_t *graph)
{
    MUST(cudaStreamBeginCapture(s.origin, cudaStreamCaptureModeThreadLocal));
    MUST(cudaEventRecord(s.forked, s.origin));
    MUST(cudaStreamWaitEvent(s.other, s.forked, 0));
    MUST(launch(add, 1, 1, 0, s.origin, b, a, 1));
    MUST(launch(add, 1, 1, 0, s.other, c, b, 2));
    MUST(cudaEventRecord(s.joined, s.other));
    if (edges != NO_JOIN) MUST(cudaStreamWaitEvent(s.origin, s.joined, 0));
    MUST(launch(add, 1, 1, 0, s.origin, a, c, 0));
    return cudaStreamEndCapture(s.origin, graph);
}

static int replay(bool ordered)
{
    two_streams s;
    float zero[1] = {0}, *a = device_array(1, zero), *b = device_array<float>(1), *c = device_array<float>(1), out;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    size_t nodes;
    MUST(cudaStreamBeginCapture(s.origin, cudaStreamCaptureModeThreadLocal));
    MUST(launch(add, 1, 1, 0, s.origin, b, a, 1));
    MUST(cudaEventRecord(s.forked, s.origin));
    if (!ordered) { // the event of before the kernel
        MUST(cudaStreamEndCapture(s.origin, &graph));
        MUST(cudaGraphDestroy(graph));
        MUST(cudaStreamBeginCapture(s.origin, cudaStreamCaptureModeThreadLocal));
        MUST(cudaEventRecord(s.forked, s.origin));
        MUST(launch(add, 1, 1, 0, s.origin, b, a, 1));
    }
    MUST(cudaStreamWaitEvent(s.other, s.forked, 0));
    MUST(launch(add, 1, 1, 0, s.other, c, b, 2));
    MUST(cudaEventRecord(s.joined, s.other));
    MUST(cudaStreamWaitEvent(s.origin, s.joined, 0));
    MUST(launch(add, 1, 1, 0, s.origin, a, c, 0));
    MUST(cudaMemsetAsync(c, 0xFF, sizeof(float), s.origin));
    MUST(cudaStreamEndCapture(s.origin, &graph));
    MUST(cudaGraphGetNodes(graph, nullptr, &nodes));
    MUST(cudaGraphInstantiate(&exec, graph, 0));
    MUST(cudaGraphDestroy(graph));
    read_array(&out, a, 1);
    if (nodes != 4 || out != 0) return 2; // nothing ran while it was recorded
    for (int i = 0; i < 3; i++) MUST(cudaGraphLaunch(exec, s.origin));
    MUST(cudaGraphExecDestroy(exec)); // launches that have been made go on
    MUST(cudaStreamSynchronize(s.origin));
    read_array(&out, a, 1);
    return out == 9 ? 0 : 1;
}

static void a_graph_runs_what_was_recorded_as_often_as_asked(void **)
{
    assert_int_equal(wrong_seeds(seeds, [] { return replay(true); }), 0);
}

static void a_missing_edge_of_a_graph_shows(void **)
{
    int wrong = wrong_seeds(seeds, [] { return replay(false); });
    print_message("without the edge %d of %d seeds are wrong\n", wrong, seeds);
    assert_true(wrong >= 5);
}

/* One graph in two streams: nothing orders them but that it is one graph. */
static int launch_in_two_streams()
{
    two_streams s;
    const float zero = 0;
    float *a = device_array(1, &zero), *b = device_array<float>(1), out;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    MUST(cudaStreamBeginCapture(s.origin, cudaStreamCaptureModeThreadLocal));
    MUST(launch(add, 1, 1, 0, s.origin, b, a, 1));
    MUST(launch(add, 1, 1, 0, s.origin, a, b, 1));
    MUST(cudaStreamEndCapture(s.origin, &graph));
    MUST(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 4; i++) MUST(cudaGraphLaunch(exec, i % 2 ? s.other : s.origin));
    MUST(cudaDeviceSynchronize());
    read_array(&out, a, 1);
    return out == 8 ? 0 : 1;
}

static void launches_of_one_graph_do_not_overlap(void **)
{
    assert_int_equal(wrong_seeds(seeds, launch_in_two_streams), 0);
}

static int capture_code(edges edges)
{
    two_streams s;
    float *a = device_array<float>(1);
    cudaGraph_t graph;
    return int(capture(s, a, a, a, edges, &graph));
}

static void a_stream_that_was_drawn_in_must_come_back(void **)
{
    assert_int_equal(in_child({}, [] { return capture_code(ALL); }).exit, cudaSuccess);
    assert_int_equal(in_child({}, [] { return capture_code(NO_JOIN); }).exit, cudaErrorStreamCaptureUnjoined & 0xff);
}

/* A call in a capture, its error, and that of the capture that it spoiled. */
static bool spoils(cudaError_t (*call)(const two_streams &, float *), cudaError_t error)
{
    return in_child({}, [=] {
               two_streams s;
               float *a = device_array<float>(1);
               cudaGraph_t graph;
               MUST(cudaStreamBeginCapture(s.origin, cudaStreamCaptureModeThreadLocal));
               if (call(s, a) != error) return 1;
               if (launch(add, 1, 1, 0, s.origin, a, a, 1) != cudaErrorStreamCaptureInvalidated) return 2;
               return cudaStreamEndCapture(s.origin, &graph) == cudaErrorStreamCaptureInvalidated ? 0 : 3;
           }).exit == 0;
}

static void calls_that_no_capture_allows_are_errors(void **)
{
    assert_true(spoils([](const two_streams &s, float *) { return cudaStreamSynchronize(s.origin); },
                       cudaErrorStreamCaptureUnsupported));
    assert_true(spoils([](const two_streams &s, float *) { return cudaStreamQuery(s.origin); },
                       cudaErrorStreamCaptureUnsupported));
    assert_true(spoils([](const two_streams &, float *) { return cudaDeviceSynchronize(); },
                       cudaErrorStreamCaptureUnsupported));
    assert_true(spoils(
        [](const two_streams &, float *) {
            void *memory;
            return cudaMalloc(&memory, 1);
        },
        cudaErrorStreamCaptureUnsupported));
    assert_true(spoils(
        [](const two_streams &s, float *a) {
            float host = 0;
            return cudaMemcpyAsync(a, &host, sizeof host, cudaMemcpyHostToDevice, s.origin);
        },
        cudaErrorStreamCaptureUnsupported));
    assert_true(spoils(
        [](const two_streams &s, float *) {
            MUST(cudaEventRecord(s.forked, s.other));
            return cudaStreamWaitEvent(s.origin, s.forked, 0);
        },
        cudaErrorStreamCaptureIsolation));
}

int main()
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_graph_runs_what_was_recorded_as_often_as_asked),
        cmocka_unit_test(a_missing_edge_of_a_graph_shows),
        cmocka_unit_test(launches_of_one_graph_do_not_overlap),
        cmocka_unit_test(a_stream_that_was_drawn_in_must_come_back),
        cmocka_unit_test(calls_that_no_capture_allows_are_errors),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
