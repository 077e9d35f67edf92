/* The native side of dmtree.ycsb.Native: one call of dmtree.h each. */
#include <jni.h>
#include <stdlib.h>

#include "dmtree.h"

/* Throws the last error of this thread. */
static void fail(JNIEnv *env, dmtree_status status) {
    jclass class = (*env)->FindClass(env, "dmtree/ycsb/DmtreeException");
    if (class == NULL) {
        return;
    }
    jmethodID made = (*env)->GetMethodID(env, class, "<init>", "(ILjava/lang/String;)V");
    jstring message = (*env)->NewStringUTF(env, dmtree_last_error());
    if (made == NULL || message == NULL) {
        return;
    }
    jobject error = (*env)->NewObject(env, class, made, (jint)status, message);
    if (error != NULL) {
        (*env)->Throw(env, error);
    }
}

/* The bytes of an array, which `give_back` releases; none for null, and without memory. */
static dmtree_slice borrow(JNIEnv *env, jbyteArray array) {
    dmtree_slice slice = {NULL, 0};
    if (array != NULL) {
        slice.data = (const uint8_t *)(*env)->GetByteArrayElements(env, array, NULL);
        slice.len = slice.data == NULL ? 0 : (size_t)(*env)->GetArrayLength(env, array);
    }
    return slice;
}

static void give_back(JNIEnv *env, jbyteArray array, dmtree_slice slice) {
    if (slice.data != NULL) {
        (*env)->ReleaseByteArrayElements(env, array, (jbyte *)slice.data, JNI_ABORT);
    }
}

static jbyteArray array_of(JNIEnv *env, const uint8_t *data, size_t len) {
    jbyteArray array = (*env)->NewByteArray(env, (jsize)len);
    if (array != NULL && len > 0) {
        (*env)->SetByteArrayRegion(env, array, 0, (jsize)len, (const jbyte *)data);
    }
    return array;
}

/* A text, which `text_given_back` releases; null for null. */
static const char *text(JNIEnv *env, jstring string) {
    return string == NULL ? NULL : (*env)->GetStringUTFChars(env, string, NULL);
}

static void text_given_back(JNIEnv *env, jstring string, const char *text) {
    if (text != NULL) {
        (*env)->ReleaseStringUTFChars(env, string, text);
    }
}

/* A handle, or an exception. */
static jlong opened(JNIEnv *env, dmtree_status status, uint64_t handle) {
    if (status < 0) {
        fail(env, status);
        return 0;
    }
    return (jlong)handle;
}

JNIEXPORT jlong JNICALL Java_dmtree_ycsb_Native_openPool(JNIEnv *env, jclass class, jstring memory,
                                                         jstring durable) {
    (void)class;
    dmtree_pool_options options = {0};
    options.memory = text(env, memory);
    options.durable = text(env, durable);
    uint64_t pool = 0;
    dmtree_status status = dmtree_pool_open(&options, &pool);
    text_given_back(env, memory, options.memory);
    text_given_back(env, durable, options.durable);
    return opened(env, status, pool);
}

JNIEXPORT jlong JNICALL Java_dmtree_ycsb_Native_connect(JNIEnv *env, jclass class, jstring address,
                                                        jstring key_file) {
    (void)class;
    dmtree_connect_options options = {0};
    options.key_file = text(env, key_file);
    const char *first = text(env, address);
    uint64_t pool = 0;
    dmtree_status status = dmtree_pool_connect(first, &options, &pool);
    text_given_back(env, address, first);
    text_given_back(env, key_file, options.key_file);
    return opened(env, status, pool);
}

JNIEXPORT void JNICALL Java_dmtree_ycsb_Native_closePool(JNIEnv *env, jclass class, jlong pool) {
    (void)class;
    opened(env, dmtree_pool_close((uint64_t)pool), 0);
}

JNIEXPORT jlong JNICALL Java_dmtree_ycsb_Native_openIndex(JNIEnv *env, jclass class, jlong pool,
                                                          jstring name) {
    (void)class;
    const char *called = text(env, name);
    uint64_t index = 0;
    dmtree_status status = dmtree_index_open_or_create((uint64_t)pool, called, NULL, &index);
    text_given_back(env, name, called);
    return opened(env, status, index);
}

JNIEXPORT void JNICALL Java_dmtree_ycsb_Native_closeIndex(JNIEnv *env, jclass class, jlong index) {
    (void)class;
    opened(env, dmtree_index_close((uint64_t)index), 0);
}

JNIEXPORT jbyteArray JNICALL Java_dmtree_ycsb_Native_get(JNIEnv *env, jclass class, jlong index,
                                                         jbyteArray key) {
    (void)class;
    dmtree_slice bytes = borrow(env, key);
    dmtree_bytes value = {NULL, 0};
    dmtree_status status = dmtree_get((uint64_t)index, bytes, &value);
    give_back(env, key, bytes);
    if (status != DMTREE_STATUS_OK) {
        opened(env, status, 0);
        return NULL;
    }
    jbyteArray array = array_of(env, value.data, value.len);
    dmtree_bytes_free(value);
    return array;
}

/* The status of a write, or an exception. */
static jint written(JNIEnv *env, dmtree_status status) {
    opened(env, status, 0);
    return (jint)status;
}

JNIEXPORT jint JNICALL Java_dmtree_ycsb_Native_put(JNIEnv *env, jclass class, jlong index,
                                                   jbyteArray key, jbyteArray value) {
    (void)class;
    dmtree_slice k = borrow(env, key), v = borrow(env, value);
    dmtree_status status = dmtree_put((uint64_t)index, k, v);
    give_back(env, key, k);
    give_back(env, value, v);
    return written(env, status);
}

JNIEXPORT jint JNICALL Java_dmtree_ycsb_Native_compareAndSet(JNIEnv *env, jclass class, jlong index,
                                                             jbyteArray key, jbyteArray expected,
                                                             jbyteArray value) {
    (void)class;
    dmtree_slice k = borrow(env, key), e = borrow(env, expected), v = borrow(env, value);
    dmtree_status status = dmtree_compare_and_set((uint64_t)index, k, e, v);
    give_back(env, key, k);
    give_back(env, expected, e);
    give_back(env, value, v);
    return written(env, status);
}

JNIEXPORT jint JNICALL Java_dmtree_ycsb_Native_delete(JNIEnv *env, jclass class, jlong index,
                                                      jbyteArray key) {
    (void)class;
    dmtree_slice k = borrow(env, key);
    dmtree_status status = dmtree_delete((uint64_t)index, k);
    give_back(env, key, k);
    return written(env, status);
}

JNIEXPORT jlong JNICALL Java_dmtree_ycsb_Native_scan(JNIEnv *env, jclass class, jlong index,
                                                     jbyteArray low, jlong limit) {
    (void)class;
    dmtree_scan_options options = {0};
    options.low = borrow(env, low);
    options.low_bound = DMTREE_BOUND_INCLUDED;
    options.limit = (uint64_t)limit;
    uint64_t scan = 0;
    dmtree_status status = dmtree_scan((uint64_t)index, &options, &scan);
    give_back(env, low, options.low);
    return opened(env, status, scan);
}

JNIEXPORT jobjectArray JNICALL Java_dmtree_ycsb_Native_next(JNIEnv *env, jclass class, jlong scan) {
    (void)class;
    dmtree_pair pair;
    dmtree_status status = dmtree_scan_next((uint64_t)scan, &pair);
    if (status != DMTREE_STATUS_OK) {
        opened(env, status, 0);
        return NULL;
    }
    jclass bytes = (*env)->FindClass(env, "[B");
    jobjectArray both = bytes == NULL ? NULL : (*env)->NewObjectArray(env, 2, bytes, NULL);
    jbyteArray key = array_of(env, pair.key.data, pair.key.len);
    jbyteArray value = array_of(env, pair.value.data, pair.value.len);
    if (both == NULL || key == NULL || value == NULL) {
        return NULL;
    }
    (*env)->SetObjectArrayElement(env, both, 0, key);
    (*env)->SetObjectArrayElement(env, both, 1, value);
    return both;
}

JNIEXPORT void JNICALL Java_dmtree_ycsb_Native_closeScan(JNIEnv *env, jclass class, jlong scan) {
    (void)class;
    opened(env, dmtree_scan_close((uint64_t)scan), 0);
}
