use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use rdma::cm::blocking::{self, ListenOptions};
use rdma::{DeviceSelector, RemoteAccess};

use super::*;
use crate::rping::ping_text;

const PATIENCE: Duration = Duration::from_secs(60);

fn settings() -> Settings {
    let (verbose, json, debug) = (false, false, false);
    Settings { size: 64, count: Some(3), validate: true, verbose, json, debug, timeout: Some(PATIENCE) }
}

fn soft0() -> Context {
    rdma::open(&"soft0".parse::<DeviceSelector>().unwrap()).unwrap().context
}

/// A client that has connected and waits.
struct Guest {
    session: Session,
    text: ExposedRegion,
    answer: ExposedRegion,
}

impl Guest {
    fn enter(context: &Context, server: SocketAddr) -> Result<Self, Failure> {
        let route = blocking::resolve::<Rc>(context, None, server, PATIENCE)?;
        let how = (&settings().options(), PATIENCE);
        let session = Session::open(context, End::Active(route), "the server", how)?;
        let region = |access| session.region(64, access).unwrap();
        let (text, answer) = (region(RemoteAccess::READ), region(RemoteAccess::READ | RemoteAccess::WRITE));
        Ok(Self { session, text, answer })
    }

    fn ping(&mut self, number: u64) {
        let expected = ping_text(number, 64);
        self.text.copy_in(0, &expected).unwrap();
        for region in [&self.text, &self.answer] {
            self.session.send(Advert::of(&region.remote(..).unwrap()).unwrap().to_bytes()).unwrap();
            assert!(matches!(self.session.next(), Ok(Arrival::Message(_))));
        }
        let mut came = vec![0; 64];
        self.answer.copy_out(0, &mut came).unwrap();
        assert_eq!(came, expected);
    }
}

fn is_rejected(entered: Result<Guest, Failure>) -> bool {
    entered.is_err_and(|failure| failure.to_string().contains("rejected by the peer"))
}

fn serving(pool: ClientPool, clients: u64, guests: impl FnOnce(&Context, SocketAddr)) {
    let context = soft0();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = Listener::bind(&context, any, &ListenOptions::new()).unwrap();
    let address = listener.local_addr();
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| pool.serve(&context, &settings(), &listener, Some(clients)));
        guests(&context, address);
        serving.join().unwrap().unwrap();
    });
}

#[test]
fn clients_beyond_the_limit_are_rejected_and_others_go_on() {
    serving(ClientPool { most: 2, start: Builder::spawn }, 3, |context, server| {
        let mut guests = [(); 2].map(|()| Guest::enter(context, server).unwrap());
        for number in 0..3 {
            assert!(is_rejected(Guest::enter(context, server)), "there is room for two");
            guests.iter_mut().for_each(|guest| guest.ping(number));
        }
        let [leaving, mut staying] = guests;
        leaving.session.disconnect();
        // The thread of the client that left may take a moment to end.
        let mut late = loop {
            match Guest::enter(context, server) {
                Ok(guest) => break guest,
                rejected => assert!(is_rejected(rejected)),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        late.ping(0);
        staying.ping(9);
        late.session.disconnect();
        staying.session.disconnect();
    });
}

#[test]
fn without_a_thread_a_client_is_rejected_and_others_go_on() {
    static SHORT: AtomicBool = AtomicBool::new(false);
    fn start(builder: Builder, work: Work) -> io::Result<JoinHandle<bool>> {
        if SHORT.load(Ordering::Relaxed) { Err(io::Error::from_raw_os_error(11)) } else { builder.spawn(work) }
    }
    serving(ClientPool { most: 9, start }, 2, |context, server| {
        let mut early = Guest::enter(context, server).unwrap();
        early.ping(0);
        SHORT.store(true, Ordering::Relaxed);
        assert!(is_rejected(Guest::enter(context, server)), "there is no thread");
        early.ping(1);
        SHORT.store(false, Ordering::Relaxed);
        let mut late = Guest::enter(context, server).unwrap();
        late.ping(0);
        early.session.disconnect();
        late.session.disconnect();
    });
}
