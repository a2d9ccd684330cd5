/* sockets ADDRESS PORT PATH BYTES THREADS CHUNK: the plain loop that reads of objects are measured against. Each thread
 * asks for ranges of CHUNK bytes on its own connection, and receives them into its own buffer of host memory, which it
 * uses again. Prints the line of a contender. Ends with status 1 if the server does not answer with exactly the range. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static struct sockaddr_in server;
static const char *path;
static long bytes, chunk;
static atomic_long next_start;

static void fail(const char *why, ...) {
    va_list arguments;
    va_start(arguments, why);
    vfprintf(stderr, why, arguments);
    fputc('\n', stderr);
    exit(1);
}

static void receive(int connection, char *to, long len) {
    while (len > 0) {
        ssize_t got = recv(connection, to, len, 0);
        if (got <= 0) fail("the connection ended");
        to += got;
        len -= got;
    }
}

static void read_range(int connection, long start, long len, char *to) {
    char text[4096];
    int sent = snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: server\r\nRange: bytes=%ld-%ld\r\n\r\n", path, start,
                        start + len - 1);
    if (send(connection, text, sent, MSG_NOSIGNAL) != sent) fail("the request was not sent");
    long have = 0;
    char *end = NULL;
    while (!end) {
        ssize_t got = recv(connection, text + have, sizeof text - 1 - have, 0);
        if (got <= 0) fail("no answer");
        have += got;
        text[have] = 0;
        end = strstr(text, "\r\n\r\n");
        if (!end && have == sizeof text - 1) fail("the head of the answer is too long");
    }
    if (strncmp(text, "HTTP/1.1 206", 12) != 0) fail("the answer is %.12s", text);
    long first = text + have - (end + 4);
    if (first > len) fail("the answer is longer than the range");
    memcpy(to, end + 4, first);
    receive(connection, to + first, len - first);
}

static void *work(void *unused) {
    (void)unused;
    char *buffer = aligned_alloc(2 << 20, (chunk + (2 << 20) - 1) / (2 << 20) * (2 << 20));
    if (!buffer) fail("no memory");
    int connection = socket(AF_INET, SOCK_STREAM, 0);
    if (connection < 0 || connect(connection, (struct sockaddr *)&server, sizeof server) != 0) fail("no connection");
    long start;
    while ((start = atomic_fetch_add(&next_start, chunk)) < bytes)
        read_range(connection, start, bytes - start < chunk ? bytes - start : chunk, buffer);
    close(connection);
    free(buffer);
    return NULL;
}

static double seconds(struct timeval time) { return time.tv_sec + time.tv_usec / 1e6; }

int main(int count, char **words) {
    if (count != 7) fail("usage: sockets ADDRESS PORT PATH BYTES THREADS CHUNK");
    server.sin_family = AF_INET;
    server.sin_port = htons(atoi(words[2]));
    if (inet_pton(AF_INET, words[1], &server.sin_addr) != 1) fail("not an address: %s", words[1]);
    path = words[3];
    bytes = atol(words[4]);
    int threads = atoi(words[5]);
    chunk = atol(words[6]);
    if (bytes <= 0 || chunk <= 0 || threads <= 0 || threads > 1024) fail("not a size");
    pthread_t workers[1024];
    struct timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    for (int i = 0; i < threads; i++)
        if (pthread_create(&workers[i], NULL, work, NULL) != 0) fail("no thread");
    for (int i = 0; i < threads; i++) pthread_join(workers[i], NULL);
    clock_gettime(CLOCK_MONOTONIC, &after);
    double took = after.tv_sec - before.tv_sec + (after.tv_nsec - before.tv_nsec) / 1e9;
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    printf("peer=sockets case=whole setting=%d*%ld seconds=%.6f gbps=%.3f cpu=%.3f\n", threads, chunk >> 20, took,
           bytes / took / 1e9, seconds(used.ru_utime) + seconds(used.ru_stime));
}
