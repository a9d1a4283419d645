// The warden at work: opens and closes windows on time, answers requests, and runs the undo when the time
// limit passes or it is told to. One thread, one loop; the guardian runs the same loop if the worker was
// killed.
#pragma once

#include <list>
#include <optional>
#include <string>

#include "command.h"
#include "descriptor.h"
#include "home.h"
#include "log.h"
#include "spec.h"

namespace genie::warden {

class Worker {
  public:
    // What is referred to outlives the worker. `host_lock` may be not valid: then there is none.
    Worker(const Home& home, const Descriptor& host_lock, const Spec& spec, Descriptor listener, Log log,
           Slot& slot, std::string backup_unit);

    // Writes "armed"; from now on the time limit runs.
    void arm(const std::string& backup_error);
    Nanos ttl_end() const { return ttl_end_; }

    // Goes on where a killed worker stopped: undoes at once what it may have applied.
    void take_over(const Facts& facts, pid_t killed, int wait_status);

    // Until the end of the warden.
    void run();

  private:
    enum class Awaits { kRequest, kClosed, kEnd, kNothing };

    struct Client {
        Descriptor socket;
        std::string in, out;
        std::size_t sent = 0;
        Nanos until = 0;
        Awaits awaits = Awaits::kRequest;
    };

    // What is still to happen in the open window; kNever where nothing is.
    struct Pending {
        Nanos later = INT64_MAX;
        Nanos last_check = INT64_MAX;
    };

    // An undo that has to be run, again and again until it succeeds.
    struct Undo {
        Nanos next_try = 0;
        std::size_t tries = 0;
    };

    void step();
    void fire();
    void end_by(const std::string& whom);
    void announce_window();
    std::string open_window();
    void run_checks(std::int64_t index);
    void run_later();
    void request_undo();
    void try_undo();
    void after_undo(Nanos began_ns, Nanos done_ns);
    void plan_next();
    void end(const Event& last, const std::string& state);

    void wait();
    Nanos next_deadline() const;
    void drop_clients();
    void accept_clients();
    void serve(Client& client);
    void handle(Client& client, std::string_view request);
    std::string start(std::string_view origin);
    void compose(Client& client, const std::string& error, bool with_log);
    void answer(Client& client, const std::string& error, bool with_log);
    void answer_all(Awaits awaiting, const std::string& error);
    void send(Client& client);
    void flush_clients();

    bool note(const Event& event, Durable durable);

    const Home& home_;
    const Descriptor& host_lock_;
    const Spec& spec_;
    Descriptor listener_;
    Log log_;
    Slot& slot_;
    std::string unit_;
    std::list<Client> clients_;

    std::string state_ = "armed";
    bool may_be_applied_ = false;
    bool failed_ = false;  // a do failed: no more windows
    bool ended_ = false;
    bool fired_ = false;
    bool disarm_ = false, revert_ = false;  // asked for
    bool orphaned_ = false;                 // run by the guardian
    std::string ended_by_;                  // set once the warden is to end with an undo
    std::string log_error_;
    Nanos ttl_end_ = 0;
    std::optional<Nanos> origin_;
    std::optional<Edges> next_;  // the window to come, or the one announced or open
    bool announced_ = false;
    bool open_ = false;
    std::int64_t told_windows_ = 0;
    std::optional<Undo> undo_;
    Pending pending_;
};

}  // namespace genie::warden
