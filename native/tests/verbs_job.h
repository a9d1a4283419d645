// Runs whole jobs in this process over the verbs transport: on the fake device, or on a real one.
#pragma once

#include <sys/eventfd.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "builder.h"
#include "clock.h"
#include "driver.h"
#include "verbs.h"

namespace genie::test {

// All settings, the given ones changed.
inline std::string verbs_settings(std::map<std::string, std::string> changed = {}) {
    std::map<std::string, std::string> all = {{"device", ""},
                                              {"port", "1"},
                                              {"gid_index", "-1"},
                                              {"mtu", "auto"},
                                              {"timeout", "20"},
                                              {"retry_cnt", "7"},
                                              {"rnr_retry", "7"},
                                              {"min_rnr_timer", "12"},
                                              {"traffic_class", "0"},
                                              {"service_level", "0"},
                                              {"hop_limit", "255"},
                                              {"pkey_index", "0"},
                                              {"qps_per_connection", "1"},
                                              {"split", "0"},
                                              {"mode", "write"},
                                              {"completion", "adaptive"},
                                              {"slots", "8"},
                                              {"credit_every", "1"},
                                              {"inline_bytes", "64"},
                                              {"adaptive_routing", "auto"},
                                              {"ar_threshold_bytes", "8192"},
                                              {"pci_relaxed_ordering", "auto"}};
    for (const auto& [key, value] : changed) all[key] = value;
    std::string text;
    for (const auto& [key, value] : all) text.append(key).append("=").append(value).append("\n");
    return text;
}

// One rank with all it needs.
class VerbsRank {
  public:
    VerbsRank(const ProgramBuilder& builder, const VerbsLibrary& library, std::string event_path = {})
        : program_(builder.program()),
          events_(event_path, program_.header.rank, program_.header.world, program_.header.event_capacity),
          stop_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
          transport_({program_, events_, token_, stop_.get(), [this](const std::string& text) { log(text); }},
                     library),
          rank_(program_, events_, clock_, transport_) {}
    ~VerbsRank() { stop(); }

    Endpoint open() {
        Opened opened = transport_.open();
        card_ = opened.card;
        used_ = opened.used;
        return {program_.header.rank, 0x7f000001, 0, card_};
    }
    const std::vector<std::uint8_t>& card() const { return card_; }
    const std::string& used() const { return used_; }
    void connect(const std::vector<Endpoint>& endpoints) {
        transport_.connect_all(endpoints, [] { return false; });
    }
    FailureReport run() {
        rank_.begin(monotonic_now());
        drive(rank_, transport_, {static_cast<std::int64_t>(program_.header.spin_ns)},
              [this]() -> const std::string* { return stopped_ ? &reason_ : nullptr; });
        return rank_.failure();
    }
    // By hand, with others on the same thread: whether it still runs.
    void begin() { rank_.begin(monotonic_now()); }
    bool step() {
        rank_.advance(monotonic_now());
        const Nanos now = monotonic_now();
        if (rank_.running()) transport_.gather(now, now);
        return rank_.running();
    }
    FailureReport failure() const { return rank_.failure(); }
    std::uint32_t iteration() const { return rank_.iteration(); }
    void stop() {
        stopped_ = true;
        const std::uint64_t one = 1;
        if (::write(stop_.get(), &one, sizeof one) < 0) log("cannot stop");
    }

    VerbsTransport& transport() { return transport_; }
    EventFile& events() { return events_; }
    const Program& program() const { return program_; }
    std::string logged() {
        const std::lock_guard lock(mutex_);
        return logged_;
    }

  private:
    void log(const std::string& text) {
        const std::lock_guard lock(mutex_);
        logged_ += text + "\n";
    }

    std::mutex mutex_;
    std::string logged_;
    const std::string reason_ = "stopped";
    std::atomic<bool> stopped_{false};
    std::vector<std::uint8_t> card_;
    std::string used_;
    Token token_{};
    const Program program_;
    EventFile events_;
    Descriptor stop_;
    MonotonicClock clock_;
    VerbsTransport transport_;
    Rank<MonotonicClock, VerbsTransport> rank_;
};

using VerbsRanks = std::vector<std::unique_ptr<VerbsRank>>;

// Ranks that are connected; `change` may falsify what they tell one another.
inline VerbsRanks connected_ranks(const std::vector<ProgramBuilder>& builders, const VerbsLibrary& library,
                                  const std::function<void(std::vector<Endpoint>&)>& change = {},
                                  const std::vector<std::string>& event_paths = {}) {
    VerbsRanks ranks;
    std::vector<Endpoint> endpoints;
    for (std::size_t i = 0; i < builders.size(); ++i) {
        ranks.push_back(std::make_unique<VerbsRank>(builders[i], library,
                                                    event_paths.empty() ? std::string() : event_paths[i]));
        endpoints.push_back(ranks.back()->open());
    }
    if (change) change(endpoints);
    for (const auto& rank : ranks) rank->connect(endpoints);
    return ranks;
}

// Runs all to their ends; once one has failed the others are stopped.
inline std::vector<FailureReport> run_ranks(VerbsRanks& ranks) {
    std::vector<FailureReport> failures(ranks.size());
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
        threads.emplace_back([&, i] {
            failures[i] = ranks[i]->run();
            if (failures[i].code == Code::kNone) return;
            for (const auto& rank : ranks) rank->stop();
        });
    }
    for (std::thread& thread : threads) thread.join();
    return failures;
}

inline ProgramBuilder verbs_builder(std::uint32_t rank, std::uint32_t ranks,
                                    const std::map<std::string, std::string>& settings = {},
                                    bool verify = true) {
    ProgramBuilder builder(rank, ranks);
    std::strcpy(builder.header.transport, "verbs");
    builder.settings = verbs_settings(settings);
    builder.header.iterations = 3;
    if (verify) builder.header.flags |= kFlagVerify;
    return builder;
}

}  // namespace genie::test
