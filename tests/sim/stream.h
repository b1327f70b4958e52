/* Streams and events: queues of work that runs late and in any permitted order.
 *
 * Nothing runs when it is enqueued (but with seed 0). What waits for work (synchronise, query, free) runs operations of
 * all streams, a random runnable one at a time, until what it waits for is done. Streams have seeded speeds, so that in
 * some seeds a stream is far ahead of one that it should have waited for. All of it wants the runtime's lock held.
 */
#ifndef SIM_STREAM_H
#define SIM_STREAM_H

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace sim
{

/* The runtime's lock. One thread at a time is in the simulation; it is let go only while waiting for another process.
 */
extern std::mutex lock;

enum class progress {
    done,
    advanced, /* not done; come back */
    blocked,  /* until another process, or a call of the program, does something */
};

struct operation {
    const char *name;
    std::function<progress()> run;
    std::function<bool()> ready; /* empty: always */
};

struct capture;

struct stream {
    int device;
    unsigned flags;
    int priority;
    bool legacy; /* the default stream of its device */
    uint64_t speed;
    struct entry {
        uint64_t number; /* in the order of the program's calls */
        operation work;
    };
    std::deque<entry> queue;
    uint64_t enqueued, completed;
    std::shared_ptr<capture> capturing;
    std::vector<size_t> capture_tail; /* the nodes that the next one follows */
    bool destroyed;                   /* goes away when its queue is empty */
};

struct event {
    int device;
    unsigned flags;
    uint64_t recorded, done; /* how many times */
    double seconds;          /* when it was done last */
    std::shared_ptr<capture> captured_in;
    std::vector<size_t> captured_tail;
};

stream *stream_create(int device, unsigned flags, int priority);
void stream_destroy(stream *stream);
stream *default_stream(int device);
bool stream_exists(const stream *stream);

/* To the stream's queue, or to the graph it is capturing. */
void enqueue(stream &stream, operation work);

/* Of streams that do not capture; graph.h has those of a capture. */
void record(const std::shared_ptr<event> &event, stream &stream);
void wait_for(stream &stream, const std::shared_ptr<event> &event);

/* Run one operation that is permitted now, if there is one. */
bool run_one();

/* Run operations until `reached`. While only other processes can help, the lock is let go. */
void run_until(const std::function<bool()> &reached);
void run_all();
void run_stream(const stream &stream);

} // namespace sim

#endif
