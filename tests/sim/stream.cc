#include "stream.h"

#include "graph.h"
#include "memory.h"
#include "random.h"
#include "settings.h"

#include <algorithm>
#include <chrono>
#include <cuda_runtime_api.h>
#include <map>
#include <string>
#include <thread>

namespace sim
{

std::mutex lock;

namespace
{

std::vector<std::unique_ptr<stream>> &streams()
{
    static auto *const all = new std::vector<std::unique_ptr<stream>>; // outlives every caller at exit
    return *all;
}

generator &choices()
{
    static generator draw(options().seed * 0xD1B54A32D192ED03);
    return draw;
}

uint64_t next_number;

double seconds_now()
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

stream *add_stream(int device, unsigned flags, int priority, bool legacy)
{
    auto added = std::make_unique<stream>();
    added->device = device;
    added->flags = flags;
    added->priority = priority;
    added->legacy = legacy;
    added->speed = uint64_t(1) << 3 * choices().below(4);
    streams().push_back(std::move(added));
    return streams().back().get();
}

bool listed(const stream *asked)
{
    return std::any_of(streams().begin(), streams().end(), [=](const auto &stream) { return stream.get() == asked; });
}

/* The default stream's work runs between what was enqueued before and after it in the device's blocking streams. */
bool default_stream_permits(const stream &asked)
{
    if (asked.flags & cudaStreamNonBlocking) return true;
    uint64_t number = asked.queue.front().number;
    for (const auto &other : streams()) {
        if (other.get() == &asked || other->device != asked.device || other->queue.empty()) continue;
        if (other->flags & cudaStreamNonBlocking || other->legacy == asked.legacy) continue;
        if (other->queue.front().number < number) return false;
    }
    return true;
}

bool runnable(const stream &stream)
{
    if (stream.queue.empty() || !default_stream_permits(stream)) return false;
    const auto &ready = stream.queue.front().work.ready;
    return !ready || ready();
}

bool operation_begun; /* by the last step: whatever can come between its two halves is given an even chance */

/* One of `candidates`, the faster the likelier. */
size_t choose(const std::vector<stream *> &candidates)
{
    if (operation_begun) return choices().below(candidates.size());
    uint64_t total = 0;
    for (const stream *candidate : candidates) total += candidate->speed;
    uint64_t drawn = choices().below(total);
    size_t index = 0;
    while (drawn >= candidates[index]->speed) drawn -= candidates[index++]->speed;
    return index;
}

void forget_if_destroyed(stream *stream)
{
    if (!stream->destroyed || !stream->queue.empty()) return;
    auto &all = streams();
    all.erase(std::find_if(all.begin(), all.end(), [&](const auto &each) { return each.get() == stream; }));
}

[[noreturn]] void report_deadlock(const char *why)
{
    std::string heads;
    for (const auto &stream : streams())
        if (!stream->queue.empty())
            heads += std::string(heads.empty() ? "" : ", ") + stream->queue.front().work.name + " (and " +
                     std::to_string(stream->queue.size() - 1) + " behind it)";
    fatal(__FILE__, __LINE__, "%s; at the heads of streams: %s", why, heads.empty() ? "nothing" : heads.c_str());
}

/* Whether work is left that only waits for something outside: it was runnable, and blocked. */
bool waits_for_others()
{
    for (const auto &stream : streams())
        if (runnable(*stream)) return true;
    return false;
}

} // namespace

stream *stream_create(int device, unsigned flags, int priority)
{
    return add_stream(device, flags, priority, false);
}

stream *default_stream(int device)
{
    static std::map<int, stream *> by_device;
    stream *&found = by_device[device];
    if (!found) found = add_stream(device, cudaStreamDefault, 0, true);
    return found;
}

void stream_destroy(stream *stream)
{
    stream->destroyed = true;
    forget_if_destroyed(stream);
}

bool stream_exists(const stream *asked)
{
    return listed(asked) && !asked->destroyed;
}

void enqueue(stream &stream, operation work)
{
    if (stream.capturing) {
        capture_operation(stream, std::move(work));
        return;
    }
    stream.queue.push_back({next_number++, std::move(work)});
    stream.enqueued++;
    if (options().seed != 0) return;
    device_access access;
    while (run_one()) {
    }
}

void record(const std::shared_ptr<event> &event, stream &stream)
{
    uint64_t recording = ++event->recorded;
    event->captured_in = nullptr;
    enqueue(stream, {"an event",
                     [event, recording] {
                         event->done = std::max(event->done, recording); // another stream's may be done first
                         event->seconds = seconds_now();
                         return progress::done;
                     },
                     {}});
}

void wait_for(stream &stream, const std::shared_ptr<event> &event)
{
    uint64_t recording = event->recorded;
    enqueue(stream, {"a wait for an event", [] { return progress::done; },
                     [event, recording] { return event->done >= recording; }});
}

bool run_one()
{
    std::vector<stream *> candidates;
    for (const auto &stream : streams())
        if (runnable(*stream)) candidates.push_back(stream.get());
    while (!candidates.empty()) {
        size_t index = choose(candidates);
        stream *chosen = candidates[index];
        progress outcome = chosen->queue.front().work.run();
        if (outcome == progress::done) {
            chosen->queue.pop_front();
            chosen->completed++;
            forget_if_destroyed(chosen);
        }
        operation_begun = outcome == progress::advanced;
        if (outcome != progress::blocked) return true;
        candidates.erase(candidates.begin() + long(index));
    }
    return false;
}

void run_until(const std::function<bool()> &reached)
{
    device_access access;
    double last_progress = seconds_now();
    while (!reached()) {
        if (run_one()) {
            last_progress = seconds_now();
            continue;
        }
        if (!waits_for_others()) report_deadlock("deadlock of streams");
        if (seconds_now() - last_progress > options().stall_seconds) report_deadlock("other processes do not come");
        lock.unlock();
        std::this_thread::sleep_for(std::chrono::microseconds(50));
        lock.lock();
    }
}

void run_all()
{
    run_until([] {
        return std::all_of(streams().begin(), streams().end(),
                           [](const auto &stream) { return stream->queue.empty(); });
    });
}

void run_stream(const stream &stream)
{
    uint64_t target = stream.enqueued;
    const struct stream *waited = &stream;
    run_until([waited, target] { return !listed(waited) || waited->completed >= target; });
}

} // namespace sim
