#include "verbs_settings.h"

#include "settings.h"

namespace genie {
namespace {

template <class Integer>
Integer ranged(Settings& settings, const char* key, std::int64_t least, std::int64_t most) {
    return static_cast<Integer>(settings.number(key, least, most));
}

VerbsChoice choice(Settings& settings, const char* key) {
    return static_cast<VerbsChoice>(settings.word(key, {"auto", "false", "true"}));
}

}  // namespace

VerbsSettings VerbsSettings::parse(const Program& program) {
    Settings given("verbs", program.settings);
    VerbsSettings out;
    out.device = given.text("device");
    out.port = ranged<std::uint8_t>(given, "port", 1, 255);
    out.gid_index = ranged<int>(given, "gid_index", -1, 255);
    constexpr std::uint32_t kMtus[] = {0, 256, 512, 1024, 2048, 4096};
    out.mtu_bytes = kMtus[given.word("mtu", {"auto", "256", "512", "1024", "2048", "4096"})];
    out.timeout = ranged<std::uint8_t>(given, "timeout", 0, 31);
    out.retry_count = ranged<std::uint8_t>(given, "retry_cnt", 0, 7);
    out.rnr_retry = ranged<std::uint8_t>(given, "rnr_retry", 0, 7);
    out.min_rnr_timer = ranged<std::uint8_t>(given, "min_rnr_timer", 0, 31);
    out.traffic_class = ranged<std::uint8_t>(given, "traffic_class", 0, 255);
    out.service_level = ranged<std::uint8_t>(given, "service_level", 0, 15);
    out.hop_limit = ranged<std::uint8_t>(given, "hop_limit", 1, 255);
    out.pkey_index = ranged<std::uint16_t>(given, "pkey_index", 0, 65535);
    out.queue_pairs = ranged<std::uint32_t>(given, "qps_per_connection", 1, kMostQueuePairs);
    out.split = given.flag("split");
    out.mode = static_cast<VerbsMode>(given.word("mode", {"write", "send"}));
    out.completion = static_cast<VerbsCompletion>(given.word("completion", {"busy", "adaptive", "events"}));
    out.slots = ranged<std::uint32_t>(given, "slots", 1, kMostSlots);
    out.credit_every = ranged<std::uint32_t>(given, "credit_every", 1, out.slots);
    out.inline_bytes = ranged<std::uint32_t>(given, "inline_bytes", 0, 4096);
    out.adaptive_routing = choice(given, "adaptive_routing");
    out.ar_threshold_bytes = ranged<std::uint64_t>(given, "ar_threshold_bytes", 0, kMostArThresholdBytes);
    out.pci_relaxed_ordering = choice(given, "pci_relaxed_ordering");
    given.done();
    if (out.adaptive_routing == VerbsChoice::kYes && out.mode == VerbsMode::kSend) {
        throw Failure(Code::kProtocol,
                      "settings of transport verbs: adaptive_routing=true sends data as writes, found "
                      "mode=send: expected mode=write");
    }
    if (out.completion == VerbsCompletion::kEvents && program.header.spin_ns > 0) {
        throw Failure(Code::kProtocol,
                      "settings of transport verbs: completion=events never spins, but the "
                      "program's spin is " +
                          std::to_string(program.header.spin_ns) + " ns: set it to 0");
    }
    return out;
}

}  // namespace genie
