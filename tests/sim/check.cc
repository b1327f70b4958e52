#include "check.h"

#include "fiber.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <sys/wait.h>
#include <unistd.h>

#if SIM_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

child start_child(const std::vector<std::string> &settings, const std::function<int()> &body)
{
    child child = {0, tmpfile()};
    assert_non_null(child.errors);
    fflush(nullptr);
    child.process = fork();
    assert_true(child.process >= 0);
    if (child.process > 0) return child;
    dup2(fileno(child.errors), STDERR_FILENO);
#if SIM_ASAN
    __sanitizer_set_report_path("stderr"); // what is provoked on purpose belongs to the test alone
#endif
    for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) std::signal(signal, SIG_DFL); // cmocka's go on with the test
    for (const std::string &setting : settings) {
        size_t equals = setting.find('=');
        setenv(setting.substr(0, equals).c_str(), setting.substr(equals + 1).c_str(), 1);
    }
    _exit(body());
}

outcome end_of(child &child)
{
    int status;
    assert_int_equal(waitpid(child.process, &status, 0), child.process);
    outcome outcome = {WIFEXITED(status) ? WEXITSTATUS(status) : -1, WIFSIGNALED(status) ? WTERMSIG(status) : 0, ""};
    rewind(child.errors);
    char buffer[4096];
    for (size_t n; (n = fread(buffer, 1, sizeof buffer, child.errors)) > 0;) outcome.errors.append(buffer, n);
    fclose(child.errors);
    return outcome;
}

outcome in_child(const std::vector<std::string> &settings, const std::function<int()> &body)
{
    child child = start_child(settings, body);
    return end_of(child);
}

int wrong_seeds(int seeds, const std::function<int()> &body, const std::vector<std::string> &settings)
{
    int wrong = 0;
    for (int seed = 0; seed < seeds; seed++) {
        setenv("SIM_SEED", std::to_string(seed).c_str(), 1);
        outcome outcome = in_child(settings, body);
        if (outcome.exit != 0) wrong++;
        if (outcome.exit != 0 && outcome.exit != 1) fprintf(stderr, "seed %d: %s", seed, outcome.errors.c_str());
    }
    unsetenv("SIM_SEED");
    return wrong;
}

int aborted_seeds(int seeds, const char *text, const std::function<int()> &body)
{
    int aborted = 0;
    for (int seed = 0; seed < seeds; seed++) {
        outcome outcome = in_child({"SIM_SEED=" + std::to_string(seed)}, body);
        if (outcome.signal == SIGABRT && outcome.says(text))
            aborted++;
        else
            fprintf(stderr, "seed %d: exit %d, signal %d: %s\n", seed, outcome.exit, outcome.signal,
                    outcome.errors.c_str());
    }
    return aborted;
}

void must(int error, const char *call, int line)
{
    if (!error) return;
    fprintf(stderr, "line %d: %s: error %d\n", line, call, error);
    _exit(2);
}
