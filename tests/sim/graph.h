/* Stream capture: operations written down as a graph, and run again later.
 *
 * What the program enqueues into a capturing stream becomes a node that follows the stream's last one; an event
 * recorded there and waited for by another stream draws that stream into the capture. A replay runs the nodes in a
 * random order that their edges permit.
 */
#ifndef SIM_GRAPH_H
#define SIM_GRAPH_H

#include "stream.h"

#include <cuda_runtime_api.h>
#include <thread>

namespace sim
{

struct graph_node {
    operation work;
    std::vector<size_t> after; /* nodes that run before it */
};

struct graph {
    std::vector<graph_node> nodes;
};

struct capture {
    stream *origin;
    cudaStreamCaptureMode mode;
    std::thread::id thread;
    graph nodes;
    bool invalidated;
    std::vector<stream *> streams; /* that take part */
};

struct executable_graph {
    graph nodes;
    uint64_t launched, finished;
};

cudaError_t capture_begin(stream &origin, cudaStreamCaptureMode mode);

/* Success: *captured is the graph. Else the capture is over all the same, unless the wrong stream or thread asked. */
cudaError_t capture_end(stream &origin, std::unique_ptr<graph> *captured);

void capture_operation(stream &stream, operation work);
void capture_record(const std::shared_ptr<event> &event, stream &stream);
cudaError_t capture_wait(stream &stream, const std::shared_ptr<event> &event);

/* Whether the stream's capture, if it has one, can still go on. */
cudaError_t capture_state(const stream &stream);

/* A call that no capture allows spoils the captures it disturbs: `code` is returned, cudaSuccess when there are none.
 */
cudaError_t capture_spoil(stream &stream, cudaError_t code);
cudaError_t capture_spoil_of_thread(cudaError_t code);             /* memory management and the like */
cudaError_t capture_spoil_of_device(int device, cudaError_t code); /* anything that involves the default stream */

void launch_graph(stream &stream, const std::shared_ptr<executable_graph> &graph);

} // namespace sim

#endif
