/* By LD_PRELOAD, the time of day (not monotonic time) jumps by CLOCK_JUMP seconds after two. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static time_t began;

int clock_gettime(clockid_t id, struct timespec *found) {
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    if (!began) began = now.tv_sec;
    int code = (int)syscall(SYS_clock_gettime, id, found);
    const char *jump = getenv("CLOCK_JUMP");
    if (id == CLOCK_REALTIME && jump && now.tv_sec > began + 2) found->tv_sec += atol(jump);
    return code;
}
