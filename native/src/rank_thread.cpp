#include "rank_thread.h"

#include <sched.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <new>

#include "clock.h"
#include "transports.h"

namespace genie {
namespace {

constexpr std::size_t kStackBytes = 256 << 10;
constexpr std::chrono::milliseconds kTend{2};  // between two looks after what peers still want

std::int64_t as_nanos(const timeval& time) {
    return time.tv_sec * std::int64_t{1'000'000'000} + time.tv_usec * std::int64_t{1'000};
}

Nanos real_now() {
    timespec now;
    ::clock_gettime(CLOCK_REALTIME, &now);
    return {now.tv_sec * 1'000'000'000 + now.tv_nsec};
}

}  // namespace

RankThread::RankThread(Program program, std::string event_path, const Token& token, Observer& observer,
                       Options options)
    : program_(std::move(program)),
      event_path_(std::move(event_path)),
      token_(token),
      observer_(observer),
      options_(std::move(options)),
      stop_fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (!stop_fd_.valid()) fail_errno(Code::kInternal, "cannot make an eventfd");
    pthread_attr_t attributes;
    ::pthread_attr_init(&attributes);
    ::pthread_attr_setstacksize(&attributes, std::max<std::size_t>(kStackBytes, PTHREAD_STACK_MIN));
    const int error = ::pthread_create(&thread_, &attributes, &RankThread::enter, this);
    ::pthread_attr_destroy(&attributes);
    if (error != 0) throw Failure(Code::kOutOfMemory, with_reason("cannot start a rank's thread", error));
}

RankThread::~RankThread() {
    abort("the rank's owner is leaving");
    release();
    ::pthread_join(thread_, nullptr);
}

void RankThread::connect(std::vector<Endpoint> endpoints) {
    const std::lock_guard lock(mutex_);
    endpoints_ = std::move(endpoints);
    changed_.notify_all();
}

void RankThread::start(Nanos at) {
    const std::lock_guard lock(mutex_);
    start_ = at;
    changed_.notify_all();
}

void RankThread::abort(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    if (stopped_.load(std::memory_order_relaxed)) return;
    stop_reason_ = reason;
    stopped_.store(true, std::memory_order_release);
    const std::uint64_t one = 1;
    if (::write(stop_fd_.get(), &one, sizeof one) < 0) log(with_reason("cannot signal the rank", errno));
    changed_.notify_all();
}

void RankThread::release() {
    const std::lock_guard lock(mutex_);
    released_ = true;
    changed_.notify_all();
}

void* RankThread::enter(void* self) {
    static_cast<RankThread*>(self)->body();
    return nullptr;
}

void RankThread::log(const std::string& text) const {
    if (options_.log) options_.log("rank " + std::to_string(program_.header.rank) + ": " + text);
}

template <class Ready>
void RankThread::wait_for(const char* what, const Ready& ready) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ready() || stopped_.load(std::memory_order_relaxed); });
    if (stopped_.load(std::memory_order_relaxed)) {
        throw Failure(Code::kAborted, stop_reason_ + "; waited for " + what);
    }
}

void RankThread::body() {
    FailureReport report;
    try {
        run();
    } catch (const Failure& failure) {
        report = failure.report();
        conclude(report);
    } catch (const std::bad_alloc&) {
        report.code = Code::kOutOfMemory;
        report.text = "out of memory";
        conclude(report);
    } catch (const std::exception& error) {
        report.code = Code::kInternal;
        report.text = error.what();
        conclude(report);
    }
    {
        std::unique_lock lock(mutex_);
        for (bool tends = runner_ != nullptr; tends && !released_;) {
            lock.unlock();
            tends = runner_->tend();
            lock.lock();
            changed_.wait_for(lock, kTend, [this] { return released_; });
        }
        changed_.wait(lock, [this] { return released_; });
    }
    runner_.reset();  // this thread's own descriptors
}

void RankThread::run() {
    // Sleeps are as exact as the kernel can make them.
    if (::prctl(PR_SET_TIMERSLACK, 1UL) != 0) log(with_reason("timer slack stays as it was", errno));
    if (options_.own_files && may_own_files(program_.transport()) && ::unshare(CLONE_FILES) != 0)
        log(with_reason("descriptors stay shared", errno));
    const ProgramHeader& header = program_.header;
    events_.emplace(event_path_, header.rank, header.world, header.event_capacity);
    progress_.store(&events_->header(), std::memory_order_release);
    runner_ = make_runner({program_, *events_, token_, stop_fd_.get(),
                           [this](const std::string& text) { log(text); }, options_.pace});
    observer_.listening(header.rank, runner_->open());
    wait_for("where its peers listen", [this] { return endpoints_.has_value(); });
    runner_->connect(*endpoints_, [this] { return stopped_.load(std::memory_order_acquire); });
    EventHeader& events = events_->header();
    events.state.store(static_cast<std::uint32_t>(RankState::kConnected), std::memory_order_release);
    observer_.connected(header.rank);
    wait_for("the start", [this] { return start_.has_value(); });
    const Nanos spin{static_cast<std::int64_t>(header.spin_ns)};
    sleep_until(*start_, stop_fd_.get(), spin.value > 0);
    events.start_mono_ns.store(start_->value, std::memory_order_relaxed);
    events.start_real_ns.store((real_now() + (*start_ - monotonic_now())).value, std::memory_order_relaxed);
    events.state.store(static_cast<std::uint32_t>(RankState::kRunning), std::memory_order_release);
    if (options_.break_connection != kNone) runner_->break_connection(options_.break_connection);
    conclude(runner_->run([this]() -> const std::string* {
        return stopped_.load(std::memory_order_acquire) ? &stop_reason_ : nullptr;
    }));
}

void RankThread::conclude(const FailureReport& report) {
    Ending ending = Ending::kOk;
    RankState state = RankState::kDone;
    if (report.code == Code::kAborted) {
        ending = Ending::kAborted;
        state = RankState::kAborted;
    } else if (report.code != Code::kNone) {
        ending = Ending::kFailed;
        state = RankState::kFailed;
    }
    if (events_) {
        rusage usage{};
        ::getrusage(RUSAGE_THREAD, &usage);
        EventHeader& header = events_->header();
        header.cpu_user_ns.store(as_nanos(usage.ru_utime), std::memory_order_relaxed);
        header.cpu_system_ns.store(as_nanos(usage.ru_stime), std::memory_order_relaxed);
        header.state.store(static_cast<std::uint32_t>(state), std::memory_order_release);
    }
    if (ending != Ending::kOk) observer_.failed(program_.header.rank, report);
    observer_.done(program_.header.rank, ending, report.text);
}

}  // namespace genie
