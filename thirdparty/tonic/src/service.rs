//! The service: an echo, of one message and of a stream. Both sides are written by hand, as tonic's
//! generator writes them from a `.proto` file, so that no `protoc` is needed.

use std::convert::Infallible;

use http::uri::PathAndQuery;
use tokio_stream::Stream;
use tonic::body::Body;
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming, client, server};
use tonic_prost::ProstCodec;
use tower::service_fn;

const ONE: &str = "/test.Echo/One";
const MANY: &str = "/test.Echo/Many";

/// A message of either direction.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Note {
    #[prost(uint32, tag = "1")]
    pub(crate) number: u32,
    #[prost(string, tag = "2")]
    pub(crate) text: String,
}

/// Answers an HTTP request.
pub(crate) async fn answer(request: http::Request<Body>) -> Result<http::Response<Body>, Infallible> {
    let mut grpc = server::Grpc::new(ProstCodec::<Note, Note>::default());
    Ok(match request.uri().path() {
        ONE => grpc.unary(service_fn(one), request).await,
        MANY => grpc.streaming(service_fn(many), request).await,
        other => Status::unimplemented(other).into_http(),
    })
}

async fn one(request: Request<Note>) -> Result<Response<Note>, Status> {
    match request.into_inner() {
        note if note.text.is_empty() => Err(Status::invalid_argument("the text is empty")),
        note => Ok(Response::new(note)),
    }
}

async fn many(request: Request<Streaming<Note>>) -> Result<Response<impl Stream<Item = Result<Note, Status>>>, Status> {
    Ok(Response::new(request.into_inner()))
}

/// The client's side.
pub(crate) struct Echo(client::Grpc<Channel>);

impl Echo {
    pub(crate) fn new(channel: Channel) -> Self {
        Self(client::Grpc::new(channel))
    }

    /// Sends one message, and returns the answer.
    pub(crate) async fn one(&mut self, note: Note) -> Result<Note, Status> {
        self.ready().await?;
        let answer = self.0.unary(Request::new(note), PathAndQuery::from_static(ONE), ProstCodec::default()).await?;
        Ok(answer.into_inner())
    }

    /// Sends a stream of messages, and returns that of the answers.
    pub(crate) async fn many(
        &mut self,
        notes: impl Stream<Item = Note> + Send + 'static,
    ) -> Result<Streaming<Note>, Status> {
        self.ready().await?;
        let path = PathAndQuery::from_static(MANY);
        Ok(self.0.streaming(Request::new(notes), path, ProstCodec::default()).await?.into_inner())
    }

    async fn ready(&mut self) -> Result<(), Status> {
        self.0.ready().await.map_err(|error| Status::unavailable(error.to_string()))
    }
}
