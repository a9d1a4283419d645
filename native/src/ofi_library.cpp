#include "ofi_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>

namespace genie {
namespace {

constexpr const char* kName = "libfabric.so.1";

// `version` is the symbol's, as the library calls it: the one with the structures of our headers. A build
// without symbol versions has but one.
template <class Function>
Function look_up(void* library, const char* symbol, const char* version) {
    void* found = ::dlvsym(library, symbol, version);
    if (found == nullptr) found = ::dlsym(library, symbol);
    if (found == nullptr) throw Failure(Code::kConnect, std::string(kName) + " lacks " + symbol);
    return reinterpret_cast<Function>(found);
}

OfiLibrary load() {
    // Over tcp, ofi_rxm would have 64 MiB of buffers for each rank; this many it has for each peer over
    // verbs. Whoever set it knows better. Read when the library is loaded, which the first rank does for all.
    ::setenv("FI_OFI_RXM_MSG_RX_SIZE", "128", 0);
    void* const library = ::dlopen(kName, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        throw Failure(Code::kConnect,
                      "transport ofi needs libfabric on this host (Debian, Ubuntu: apt-get install "
                      "libfabric1; EFA and Slingshot bring their own): " +
                          std::string(::dlerror()));
    }
    OfiLibrary found{};
    found.getinfo = look_up<decltype(found.getinfo)>(library, "fi_getinfo", "FABRIC_1.3");
    found.freeinfo = look_up<decltype(found.freeinfo)>(library, "fi_freeinfo", "FABRIC_1.3");
    found.dupinfo = look_up<decltype(found.dupinfo)>(library, "fi_dupinfo", "FABRIC_1.3");
    found.fabric = look_up<decltype(found.fabric)>(library, "fi_fabric", "FABRIC_1.1");
    found.strerror = look_up<decltype(found.strerror)>(library, "fi_strerror", "FABRIC_1.0");
    found.version = look_up<decltype(found.version)>(library, "fi_version", "FABRIC_1.0");
    if (FI_VERSION_LT(found.version(), kOfiVersion)) {
        throw Failure(Code::kConnect,
                      "transport ofi needs libfabric 1.11 or newer, this host has " + found.version_text());
    }
    return found;
}

}  // namespace

// ofi_rxm makes a completion queue for so many peers, 256 unless it is told: more than Soft-RoCE can have.
void OfiLibrary::expect_ranks(std::uint32_t ranks) {
    ::setenv("FI_UNIVERSE_SIZE", std::to_string(std::max(ranks, 2U)).c_str(), 0);
}

const OfiLibrary& OfiLibrary::get() {
    static const OfiLibrary library = load();
    return library;
}

std::string OfiLibrary::version_text() const {
    const std::uint32_t found = version();
    return std::to_string(FI_MAJOR(found)) + "." + std::to_string(FI_MINOR(found));
}

std::string OfiLibrary::reason(const std::string& what, std::int64_t error) const {
    return what + ": " + strerror(static_cast<int>(std::abs(error)));
}

}  // namespace genie
