#include "graph.h"

#include "random.h"
#include "settings.h"

#include <algorithm>

namespace sim
{

namespace
{

std::vector<std::shared_ptr<capture>> &captures()
{
    static auto *const active = new std::vector<std::shared_ptr<capture>>;
    return *active;
}

void add_missing(std::vector<size_t> &to, const std::vector<size_t> &from)
{
    for (size_t node : from)
        if (std::find(to.begin(), to.end(), node) == to.end()) to.push_back(node);
}

/* The nodes of `tail` and all that run before them. */
std::vector<bool> reached_from(const graph &graph, std::vector<size_t> tail)
{
    std::vector<bool> reached(graph.nodes.size());
    while (!tail.empty()) {
        size_t node = tail.back();
        tail.pop_back();
        if (reached[node]) continue;
        reached[node] = true;
        tail.insert(tail.end(), graph.nodes[node].after.begin(), graph.nodes[node].after.end());
    }
    return reached;
}

void end(const std::shared_ptr<capture> &ended)
{
    for (stream *stream : ended->streams) {
        stream->capturing = nullptr;
        stream->capture_tail.clear();
    }
    auto &active = captures();
    active.erase(std::find(active.begin(), active.end(), ended));
}

cudaError_t spoil(capture &capture, cudaError_t code)
{
    capture.invalidated = true;
    return code;
}

/* One run of a graph: a node at a time, so that other streams come in between. */
class replay
{
  public:
    explicit replay(std::shared_ptr<executable_graph> graph)
        : graph_(std::move(graph)), work_(graph_->nodes.nodes), done_(work_.size()), left_(work_.size()),
          draw_(options().seed + graph_->launched)
    {
    }

    progress run()
    {
        if (left_ > 0) {
            size_t node = choose();
            progress outcome = work_[node].work.run();
            if (outcome != progress::done) {
                begun_ = node;
                return outcome;
            }
            done_[node] = true;
            begun_ = none;
            if (--left_ > 0) return progress::advanced;
        }
        graph_->finished++;
        return progress::done;
    }

  private:
    static constexpr size_t none = SIZE_MAX;

    size_t choose()
    {
        if (begun_ != none) return begun_;
        std::vector<size_t> able;
        for (size_t node = 0; node < work_.size(); node++) {
            const auto &after = work_[node].after;
            if (!done_[node] && std::all_of(after.begin(), after.end(), [this](size_t n) { return done_[n]; }))
                able.push_back(node);
        }
        return able[draw_.below(able.size())];
    }

    std::shared_ptr<executable_graph> graph_;
    std::vector<graph_node> work_; // a copy: operations may keep state while they run
    std::vector<bool> done_;
    size_t left_, begun_ = none;
    generator draw_;
};

} // namespace

cudaError_t capture_begin(stream &origin, cudaStreamCaptureMode mode)
{
    if (origin.capturing) return cudaErrorIllegalState;
    if (origin.legacy) return cudaErrorStreamCaptureUnsupported;
    auto begun = std::make_shared<capture>();
    begun->origin = &origin;
    begun->mode = mode;
    begun->thread = std::this_thread::get_id();
    begun->streams.push_back(&origin);
    captures().push_back(begun);
    origin.capturing = begun;
    return cudaSuccess;
}

cudaError_t capture_end(stream &origin, std::unique_ptr<graph> *captured)
{
    auto ended = origin.capturing;
    if (!ended) return cudaErrorIllegalState;
    if (ended->origin != &origin) return spoil(*ended, cudaErrorStreamCaptureUnmatched);
    if (ended->mode != cudaStreamCaptureModeRelaxed && ended->thread != std::this_thread::get_id())
        return cudaErrorStreamCaptureWrongThread;
    std::vector<bool> joined = reached_from(ended->nodes, origin.capture_tail);
    bool all_joined = std::all_of(joined.begin(), joined.end(), [](bool node) { return node; });
    end(ended);
    if (ended->invalidated) return cudaErrorStreamCaptureInvalidated;
    if (!all_joined) return cudaErrorStreamCaptureUnjoined;
    *captured = std::make_unique<graph>(std::move(ended->nodes));
    return cudaSuccess;
}

void capture_operation(stream &stream, operation work)
{
    auto &nodes = stream.capturing->nodes.nodes;
    nodes.push_back({std::move(work), stream.capture_tail});
    stream.capture_tail = {nodes.size() - 1};
}

void capture_record(const std::shared_ptr<event> &event, stream &stream)
{
    event->captured_in = stream.capturing;
    event->captured_tail = stream.capture_tail;
}

cudaError_t capture_wait(stream &stream, const std::shared_ptr<event> &event)
{
    if (!event->captured_in) { // work from outside that a replay could not wait for again
        return stream.capturing ? spoil(*stream.capturing, cudaErrorStreamCaptureIsolation) : cudaSuccess;
    }
    if (stream.legacy) return spoil(*event->captured_in, cudaErrorStreamCaptureImplicit);
    if (stream.capturing && stream.capturing != event->captured_in) {
        spoil(*stream.capturing, cudaErrorStreamCaptureMerge);
        return spoil(*event->captured_in, cudaErrorStreamCaptureMerge);
    }
    if (!stream.capturing) {
        stream.capturing = event->captured_in;
        stream.capturing->streams.push_back(&stream);
    }
    add_missing(stream.capture_tail, event->captured_tail);
    return cudaSuccess;
}

cudaError_t capture_state(const stream &stream)
{
    return stream.capturing && stream.capturing->invalidated ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
}

cudaError_t capture_spoil(stream &stream, cudaError_t code)
{
    return stream.capturing ? spoil(*stream.capturing, code) : cudaSuccess;
}

cudaError_t capture_spoil_of_thread(cudaError_t code)
{
    cudaError_t result = cudaSuccess;
    for (const auto &active : captures()) {
        bool own = active->thread == std::this_thread::get_id();
        if (active->mode == cudaStreamCaptureModeGlobal || (active->mode == cudaStreamCaptureModeThreadLocal && own))
            result = spoil(*active, code);
    }
    return result;
}

cudaError_t capture_spoil_of_device(int device, cudaError_t code)
{
    cudaError_t result = cudaSuccess;
    for (const auto &active : captures())
        for (const stream *stream : active->streams)
            if (stream->device == device && !(stream->flags & cudaStreamNonBlocking)) result = spoil(*active, code);
    return result;
}

void launch_graph(stream &stream, const std::shared_ptr<executable_graph> &graph)
{
    uint64_t launch = graph->launched++;
    auto run = std::make_shared<replay>(graph);
    enqueue(stream, {"a graph", [run] { return run->run(); }, // one launch of a graph after the other
                     [graph, launch] { return graph->finished == launch; }});
}

} // namespace sim
