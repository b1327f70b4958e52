#include "settings.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <map>
#include <string>
#include <unistd.h>
#include <vector>

namespace sim
{

namespace
{

unsigned long long number_of(const char *name, unsigned long long otherwise)
{
    const char *text = getenv(name);
    if (!text || !*text) return otherwise;
    char *end;
    unsigned long long value = strtoull(text, &end, 10);
    if (*end) fatal(__FILE__, __LINE__, "%s=%s is not a number", name, text);
    return value;
}

/* The fields of NAME:A:B,NAME:A:B,… of one environment variable. */
std::vector<std::vector<std::string>> fields_of(const char *variable, size_t wanted)
{
    std::vector<std::vector<std::string>> entries;
    const char *text = getenv(variable);
    if (!text || !*text) return entries;
    entries.emplace_back(1);
    for (; *text; text++) {
        if (*text == ',')
            entries.emplace_back(1);
        else if (*text == ':')
            entries.back().emplace_back();
        else
            entries.back().back() += *text;
    }
    for (const auto &entry : entries)
        if (entry.size() != wanted) fatal(__FILE__, __LINE__, "%s is not a list of %zu fields each", variable, wanted);
    return entries;
}

struct failure {
    std::string function;
    long call;
    int code;
};

/* Where `address` lies in the file it was loaded from. */
size_t offset_in_file(const void *address)
{
    Dl_info info;
    if (!dladdr(address, &info)) return 0;
    return size_t(static_cast<const char *>(address) - static_cast<const char *>(info.dli_fbase));
}

} // namespace

const settings &options()
{
    static const settings values = {number_of("SIM_SEED", 2),
                                    int(number_of("SIM_DEVICES", 1)),
                                    size_t(number_of("SIM_MEMORY", 2ULL << 30)),
                                    int(number_of("SIM_STALL", 300)),
                                    number_of("SIM_NCCL_SILENT", 0) != 0,
                                    number_of("SIM_OPEN", 0) != 0};
    return values;
}

void fatal(const char *file, int line, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "sim: %s:%d: ", file, line);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    abort();
}

void explain(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("sim: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
}

int injected_failure(const char *function)
{
    static const std::vector<failure> failures = [] {
        std::vector<failure> list;
        for (const auto &entry : fields_of("SIM_FAIL", 3))
            list.push_back({entry[0], atol(entry[1].c_str()), atoi(entry[2].c_str())});
        return list;
    }();
    static std::map<std::string, long> calls;
    if (failures.empty()) return 0;
    long call = ++calls[function];
    for (const auto &failure : failures)
        if (failure.call == call && failure.function == function) return failure.code;
    return 0;
}

bool dropped(const char *function, const void *caller)
{
    static const auto drops = fields_of("SIM_DROP", 2);
    static std::map<std::string, std::vector<const void *>> places;
    if (drops.empty()) return false;
    auto &known = places[function];
    size_t place = 0;
    while (place < known.size() && known[place] != caller) place++;
    if (place == known.size()) known.push_back(caller);
    for (const auto &drop : drops)
        if (drop[0] == function && strtoull(drop[1].c_str(), nullptr, 10) == place + 1) return true;
    return false;
}

void trace(const char *function, const char *detail)
{
    static FILE *const file = [] {
        const char *path = getenv("SIM_TRACE");
        return path && *path ? fopen((std::string(path) + "." + std::to_string(getpid())).c_str(), "a") : nullptr;
    }();
    if (!file) return;
    fprintf(file, detail ? "%s %s\n" : "%s\n", function, detail);
    fflush(file); // the program may end by a signal
}

void trace_caller(const char *function, const void *caller)
{
    char text[32];
    snprintf(text, sizeof text, "+0x%zx", offset_in_file(caller));
    trace(function, text);
}

} // namespace sim
