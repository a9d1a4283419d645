// A rank with a thread of its own, from its program to its end; used by the agent and by `run_local`.
//
// The owner tells it, phase by phase, where the peers listen, when to start, to stop, and that all is over.
// The thread tells an `Observer`. Sockets stay open until `release`: a peer may still be reading what was
// sent.
#pragma once

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "descriptor.h"
#include "events.h"
#include "failure.h"
#include "pace.h"
#include "program.h"
#include "runner.h"
#include "sockets.h"

namespace genie {

enum class Ending : std::uint32_t { kOk = 0, kFailed = 1, kAborted = 2 };

class Observer {
  public:
    // All are called on the rank's thread.
    virtual void listening(std::uint32_t rank, const Opened& opened) = 0;
    virtual void connected(std::uint32_t rank) = 0;
    // At most one failure, then one end.
    virtual void failed(std::uint32_t rank, const FailureReport& report) = 0;
    virtual void done(std::uint32_t rank, Ending ending, const std::string& message) = 0;

  protected:
    ~Observer() = default;
};

class RankThread {
  public:
    struct Options {
        bool own_files = false;  // unshare the table of descriptors: each rank has the limit to itself
        Log log;
        PaceFile* pace = nullptr;  // the host's; outlives the thread
        // For tests: close this connection with a reset once the rank has started.
        std::uint32_t break_connection = kNone;
    };

    RankThread(Program program, std::string event_path, const Token& token, Observer& observer,
               Options options);
    RankThread(const RankThread&) = delete;
    RankThread& operator=(const RankThread&) = delete;
    ~RankThread();

    void connect(std::vector<Endpoint> endpoints);
    void start(Nanos at);
    void abort(const std::string& reason);
    void release();

    std::uint32_t rank() const { return program_.header.rank; }
    const Program& program() const { return program_; }
    // Progress counters; null until the event file is there. Valid as long as this object.
    const EventHeader* progress() const { return progress_.load(std::memory_order_acquire); }

  private:
    static void* enter(void* self);
    void body();
    void run();
    void conclude(const FailureReport& report);
    void log(const std::string& text) const;
    template <class Ready>
    void wait_for(const char* what, const Ready& ready);

    const Program program_;
    const std::string event_path_;
    const Token token_;
    Observer& observer_;
    const Options options_;

    Descriptor stop_fd_;
    std::atomic<bool> stopped_{false};
    std::mutex mutex_;
    std::condition_variable changed_;
    std::optional<std::vector<Endpoint>> endpoints_;
    std::optional<Nanos> start_;
    std::string stop_reason_;
    bool released_ = false;

    std::optional<EventFile> events_;
    std::unique_ptr<Runner> runner_;  // on the rank's thread only
    std::atomic<const EventHeader*> progress_{nullptr};
    pthread_t thread_{};
};

}  // namespace genie
