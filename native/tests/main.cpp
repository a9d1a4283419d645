#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#ifdef __SANITIZE_THREAD__
// These are not built with the sanitizer, so it cannot see how they order what their threads do.
extern "C" const char* __tsan_default_suppressions() {
    return "called_from_lib:libfabric.so.1\ncalled_from_lib:libgloo.so\n";
}
#endif
