// The registry: a line a transport. Compiled into each executable with the transports that it was given.
#include "transports.h"

#include <algorithm>
#include <string_view>

#include "tcp.h"
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
};

constexpr Entry kTransports[] = {
    {"tcp", make<TcpTransport>},
#ifdef GENIE_WITH_VERBS
    {"verbs", make<VerbsTransport>},
#endif
};

}  // namespace

std::unique_ptr<Runner> make_runner(const RankContext& context) {
    const std::string wanted = context.program.transport();
    const auto* const found = std::find_if(std::begin(kTransports), std::end(kTransports),
                                           [&](const Entry& entry) { return entry.name == wanted; });
    if (found == std::end(kTransports)) {
        throw Failure(Code::kConnect,
                      "this agent has no transport '" + wanted + "', it was built with " + transport_names());
    }
    return found->make(context);
}

std::string transport_names() {
    std::string names;
    for (const Entry& entry : kTransports) names += (names.empty() ? "" : ", ") + std::string(entry.name);
    return names;
}

}  // namespace genie
