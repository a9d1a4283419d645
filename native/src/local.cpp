#include "local.h"

#include <chrono>
#include <memory>
#include <utility>

#include "clock.h"

namespace genie {
namespace {

constexpr Nanos kLead = 5_ms;  // from "start" to the start

class Gathering final : public Observer {
  public:
    explicit Gathering(const std::vector<Program>& programs) {
        for (const Program& program : programs) {
            index_[program.header.rank] = results_.size();
            results_.push_back({program.header.rank, Ending::kOk, {}});
            endpoints_.push_back({program.header.rank, program.header.listen_ipv4, 0, {}});
            if (endpoints_.back().ipv4 == 0) endpoints_.back().ipv4 = 0x7f000001;
        }
    }

    void listening(std::uint32_t rank, const Opened& opened) override {
        const std::lock_guard lock(mutex_);
        endpoints_[index_[rank]].port = opened.port;
        endpoints_[index_[rank]].card = opened.card;
        ++listening_;
        changed_.notify_all();
    }
    void connected(std::uint32_t) override {
        const std::lock_guard lock(mutex_);
        ++connected_;
        changed_.notify_all();
    }
    void failed(std::uint32_t rank, const FailureReport& report) override {
        const std::lock_guard lock(mutex_);
        results_[index_[rank]].failure = report;
        if (first_failure_.empty()) first_failure_ = "rank " + std::to_string(rank) + ": " + report.text;
        changed_.notify_all();
    }
    void done(std::uint32_t rank, Ending ending, const std::string&) override {
        const std::lock_guard lock(mutex_);
        results_[index_[rank]].ending = ending;
        ++done_;
        changed_.notify_all();
    }

    // Until all ranks are that far, or one has failed (its reason is returned), or `until` has come.
    std::string wait(const int Gathering::*count, Nanos until = Nanos::never()) {
        std::unique_lock lock(mutex_);
        const auto ready = [&] {
            return this->*count == static_cast<int>(results_.size()) || !first_failure_.empty();
        };
        if (until == Nanos::never()) {
            changed_.wait(lock, ready);
        } else if (!changed_.wait_for(lock, std::chrono::nanoseconds((until - monotonic_now()).value),
                                      ready)) {
            return "the time was up";
        }
        return first_failure_;
    }

    void wait_all_done() {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return done_ == static_cast<int>(results_.size()); });
    }

    int listening_ = 0;
    int connected_ = 0;
    int done_ = 0;

    std::vector<Endpoint> endpoints() {
        const std::lock_guard lock(mutex_);
        return endpoints_;
    }
    std::vector<LocalResult> results() {
        const std::lock_guard lock(mutex_);
        return results_;
    }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<std::uint32_t, std::size_t> index_;
    std::vector<Endpoint> endpoints_;
    std::vector<LocalResult> results_;
    std::string first_failure_;
};

}  // namespace

std::vector<LocalResult> run_local(std::vector<Program> programs, const std::vector<std::string>& event_paths,
                                   const Token& token, const LocalOptions& options) {
    if (event_paths.size() != programs.size())
        throw Failure(Code::kInternal, "expected an event path for each rank");
    Gathering gathering(programs);
    std::vector<std::unique_ptr<RankThread>> threads;
    for (std::size_t i = 0; i < programs.size(); ++i) {
        const std::uint32_t rank = programs[i].header.rank;
        RankThread::Options own;
        own.log = options.log;
        own.pace = options.pace;
        const auto broken = options.break_connection.find(rank);
        if (broken != options.break_connection.end()) own.break_connection = broken->second;
        const auto falsified = options.false_tokens.find(rank);
        threads.push_back(std::make_unique<RankThread>(
            std::move(programs[i]), event_paths[i],
            falsified == options.false_tokens.end() ? token : falsified->second, gathering, std::move(own)));
    }
    const Nanos until =
        options.abort_after == Nanos::never() ? Nanos::never() : monotonic_now() + options.abort_after;
    std::string reason = gathering.wait(&Gathering::listening_);
    if (reason.empty()) {
        for (const auto& thread : threads) thread->connect(gathering.endpoints());
        reason = gathering.wait(&Gathering::connected_);
    }
    if (reason.empty()) {
        const Nanos start = monotonic_now() + kLead;
        for (const auto& thread : threads) thread->start(start);
        reason = gathering.wait(&Gathering::done_, until);
    }
    if (!reason.empty()) {
        for (const auto& thread : threads) thread->abort("stopped (" + reason + ")");
    }
    gathering.wait_all_done();
    return gathering.results();
}

}  // namespace genie
