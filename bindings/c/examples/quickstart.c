/* An index in this process: writes, reads, a scan, errors.
 *
 *   cc -I include examples/quickstart.c target/release/libdmtree_c.a -lpthread -ldl -lm
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dmtree.h"

static dmtree_slice text(const char *s) {
    dmtree_slice slice = {(const uint8_t *)s, strlen(s)};
    return slice;
}

/* Ends the program unless a call has done what was expected. */
static void expect(const char *call, dmtree_status status, dmtree_status wanted) {
    if (status != wanted) {
        fprintf(stderr, "%s: %d instead of %d: %s\n", call, status, wanted, dmtree_last_error());
        exit(1);
    }
}

int main(void) {
    uint64_t pool, users, scan;
    dmtree_pool_options options = {0};
    options.memory = "16MiB";
    expect("open", dmtree_pool_open(&options, &pool), DMTREE_STATUS_OK);
    expect("create", dmtree_index_create(pool, "users", NULL, &users), DMTREE_STATUS_OK);

    expect("put", dmtree_put(users, text("ada"), text("1815")), DMTREE_STATUS_OK);
    expect("put", dmtree_put(users, text("alan"), text("1912")), DMTREE_STATUS_OK);
    expect("put", dmtree_put(users, text("barbara"), text("1939")), DMTREE_STATUS_OK);
    expect("insert", dmtree_insert(users, text("ada"), text("?")), DMTREE_STATUS_EXISTS);

    dmtree_bytes value;
    expect("get", dmtree_get(users, text("ada"), &value), DMTREE_STATUS_OK);
    printf("ada was born in %.*s\n", (int)value.len, value.data);
    dmtree_bytes_free(value);
    expect("get", dmtree_get(users, text("grace"), &value), DMTREE_STATUS_ABSENT);

    dmtree_scan_options range = {0};
    range.prefix = text("a");
    range.reverse = true;
    expect("scan", dmtree_scan(users, &range, &scan), DMTREE_STATUS_OK);
    dmtree_pair pair;
    dmtree_status status;
    while ((status = dmtree_scan_next(scan, &pair)) == DMTREE_STATUS_OK) {
        printf("%.*s: %.*s\n", (int)pair.key.len, pair.key.data, (int)pair.value.len, pair.value.data);
    }
    expect("scan", status, DMTREE_STATUS_END);
    expect("close", dmtree_scan_close(scan), DMTREE_STATUS_OK);

    int64_t before;
    expect("add", dmtree_fetch_add(users, text("visits"), 2, &before), DMTREE_STATUS_OK);
    expect("add", dmtree_fetch_add(users, text("visits"), 3, &before), DMTREE_STATUS_OK);
    printf("visits were %" PRId64 "\n", before);

    expect("close", dmtree_index_close(users), DMTREE_STATUS_OK);
    status = dmtree_put(users, text("ada"), text("1815"));
    expect("a closed index", status, DMTREE_STATUS_CLOSED);
    printf("a closed index says: %s\n", dmtree_last_error());
    expect("close", dmtree_pool_close(pool), DMTREE_STATUS_OK);
    return 0;
}
