// The first process of every pod: holds the pod's namespaces open and collects orphans.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void leave(int number) {
    (void)number;
    _exit(0);
}

static void collect(int number) {
    (void)number;
    while (waitpid(-1, 0, WNOHANG) > 0) {
    }
}

int main(void) {
    signal(SIGINT, leave);
    signal(SIGTERM, leave);
    signal(SIGCHLD, collect);
    for (;;) pause();
}
