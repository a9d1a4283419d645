// The registry: a line a transport. Compiled into each executable with the transports that it was given.
#include "transports.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "tcp.h"
#ifdef GENIE_WITH_GLOO
#include "gloo.h"
#endif
#ifdef GENIE_WITH_OFI
#include "ofi.h"
#endif
#ifdef GENIE_WITH_VERBS
#include "verbs.h"
#endif

namespace genie {
namespace {

template <class Transport>
std::unique_ptr<Runner> make(const RankContext& context) {
    return std::make_unique<RunnerOf<Transport>>(context);
}

struct Entry {
    std::string_view name;
    std::unique_ptr<Runner> (*make)(const RankContext&);
    bool own_files = true;
};

constexpr Entry kTransports[] = {
    {"tcp", make<TcpTransport>},
#ifdef GENIE_WITH_GLOO
    {"gloo", make<GlooTransport>},
#endif
#ifdef GENIE_WITH_OFI
    {"ofi", make<OfiTransport>, false},
#endif
#ifdef GENIE_WITH_VERBS
    {"verbs", make<VerbsTransport>},
#endif
};

// Of the transports that are left out where their headers are missing, Debian's packages of those.
constexpr std::pair<std::string_view, std::string_view> kPackages[] = {
    {"gloo", "libgloo-dev"}, {"ofi", "libfabric-dev"}, {"verbs", "libibverbs-dev"}};

std::string how_to_have(const std::string& name) {
    for (const auto& [transport, package] : kPackages) {
        if (transport == name) return "; install " + std::string(package) + " and build GENIE again";
    }
    return {};
}

const Entry* find(const std::string& name) {
    const auto* const found = std::find_if(std::begin(kTransports), std::end(kTransports),
                                           [&](const Entry& entry) { return entry.name == name; });
    return found == std::end(kTransports) ? nullptr : found;
}

}  // namespace

std::unique_ptr<Runner> make_runner(const RankContext& context) {
    const std::string wanted = context.program.transport();
    const Entry* const found = find(wanted);
    if (found == nullptr) {
        throw Failure(Code::kConnect, "this agent has no transport '" + wanted + "', it was built with " +
                                          transport_names() + how_to_have(wanted));
    }
    return found->make(context);
}

bool may_own_files(const std::string& transport) {
    const Entry* const found = find(transport);
    return found == nullptr || found->own_files;
}

std::string transport_names() {
    std::string names;
    for (const Entry& entry : kTransports) names += (names.empty() ? "" : ", ") + std::string(entry.name);
    return names;
}

}  // namespace genie
